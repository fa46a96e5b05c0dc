"""Runs programs as forks of this process, which imports TensorFlow once for all of them.

The arguments are the generation of Keras (2, or 0 to import nothing), and the folder from which
pytest is imported for tests that run here. Requests are lines of JSON on standard input:

* {"arguments": ..., "script": ..., "folder": ..., "environment": ..., "output": FILE} starts a
  program like ``python FILE ...``, or like ``python -c SCRIPT ...`` if there is a script. The answer
  is its pid.
* {"wait": pid, "seconds": ...} is answered with its exit code, or null if it is still running.
"""

import gc
import json
import os
import signal
import sys
import time
import types
from pathlib import Path

if sys.argv[1] != "0":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    tf.keras.layers  # is loaded when it is first used
    sys.path.append(sys.argv[2])
    import pytest

    sys.path.pop()


def wait(pid, seconds):
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.01)


def serve():
    """Answer requests until stdin ends, then end all programs. In a fork, return its request."""
    running = set()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = wait(order["wait"], order["seconds"])
            if answer is not None:
                running.discard(order["wait"])
        else:
            answer = os.fork()
            if answer == 0:
                return order
            running.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def code_of(order):
    """Prepare this process as requested, and return the code that it has to run."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    script, arguments = order["script"], order["arguments"]
    sys.argv = ["-c", *arguments] if script else arguments
    first = "" if script else str(Path(arguments[0]).parent)
    sys.path[:1] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    name = "<string>" if script else arguments[0]
    return compile(script or Path(name).read_text(), name, "exec", dont_inherit=True)


gc.collect()
gc.freeze()
code = code_of(serve())
sys.modules["__main__"] = main = types.ModuleType("__main__")
main.__file__ = sys.argv[0]
exec(code, vars(main))
