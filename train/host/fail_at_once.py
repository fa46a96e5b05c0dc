"""Runs a script of JAX so that its process ends at once if the script fails.

    python fail_at_once.py SCRIPT [ARGUMENT ...]
    python fail_at_once.py -m MODULE [ARGUMENT ...]

When Python exits, JAX waits up to five minutes for all other processes to exit as well. After an
exception or ``sys.exit(1)`` in one rank, the others do not exit: they wait for that rank in a step.
So JAX and its libraries are left out of the exit of a script that failed. The functions that the
script has registered with ``atexit`` still run. (``python -m mpi4py`` does the same for MPI.) This
file runs in the script's interpreter and imports no other module of the launcher.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # its modules must not hide the script's

import atexit
import importlib.machinery
import os
import runpy
import types
from typing import List

#: Files whose frames are not shown in a traceback.
_OWN_FRAMES = (__file__, runpy.__file__, "<frozen runpy>")


def run_file(path: str) -> None:
    """Run a file as the module ``__main__``."""
    path = os.path.abspath(path)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module = types.ModuleType("__main__")
    module.__file__, module.__loader__, module.__spec__ = path, loader, None
    code = loader.source_to_code(loader.get_data(path), path)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def leave(code: int) -> None:
    """End this process with an exit code, without JAX."""
    clean_up = getattr(sys.modules.get("jax._src.api"), "clean_up", None)
    if clean_up is not None:
        atexit.unregister(clean_up)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def main(words: List[str]) -> None:
    """Run the script or module in ``words`` with its arguments."""
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    folder = os.getcwd() if is_module else os.path.dirname(os.path.realpath(words[0]))
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            run_file(words[0])
    except SystemExit as request:
        if request.code in (None, 0):
            raise
        if not isinstance(request.code, int):
            print(request.code, file=sys.stderr)
        leave(request.code & 0xFF if isinstance(request.code, int) else 1)
    except Exception as error:
        shown = error.__traceback__
        while shown is not None and shown.tb_frame.f_code.co_filename in _OWN_FRAMES:
            shown = shown.tb_next
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        leave(1)


if __name__ == "__main__":
    main(sys.argv[1:])
