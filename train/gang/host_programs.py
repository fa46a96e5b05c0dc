"""Runs the programs of train/host on hosts: one command for a host's interpreter, without files."""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ansible import constants
from ansible.errors import AnsibleConnectionFailure

from train.gang import launcher, login_failures, reports, suggestions
from train.gang.errors import UnreachableError

#: Values with which Ansible searches for the interpreter on the host.
_SEARCHED = ("", "auto", "auto_legacy", "auto_silent", "auto_legacy_silent")
#: Ansible's choice if it finds none.
_FALLBACK = "/usr/bin/python3"
#: Fields of a manifest that keep all of their characters, because the script gets them again.
_EXACT = ("arguments", "rank_arguments")
#: Reads the rest of the standard input if the interpreter ends without reading it. Otherwise ssh
#: could report a lost connection, and not how the interpreter ended.
_READ_ALL = " || { code=$?; cat >/dev/null; exit $code; }"
#: The first line of the input. If a start-up file of the login has replaced its shell by one that
#: ignores the command and runs its input, that shell ends here.
EXIT = "exit\n"
#: Explains that an interpreter is too old. It must also run in old versions, such as Python 2 and
#: the 3.6 of Rocky Linux 8.
_TOO_OLD = (
    "the host's Python (%s) is version %d.%d: install Python 3.8 or newer, or set "
    "ansible_python_interpreter to the path of one"
)
#: Reads EXIT, a request in one line, and the launcher.
_PROGRAM = (
    "import json, os, sys; "
    f"message = {_TOO_OLD!r} % ((sys.executable,) + sys.version_info[:2]); "
    "sys.version_info >= (3, 8) or "
    '[sys.stdout.write(json.dumps({"failed": True, "msg": message})), sys.exit(1)]; '
    "sys.stdin.buffer.readline(); "
    "request = json.loads(sys.stdin.buffer.readline()); "
    "launcher = sys.stdin.buffer.read(); "
    'archive = os.memfd_create("launcher"); '
    "os.write(archive, launcher); "
    'sys.path.insert(0, "/proc/self/fd/%d" % archive); '
    "from train.host import calls; "
    "calls.main(dict(request, launcher=launcher))"
)


class Answer(NamedTuple):
    """What a command printed on a host."""

    value: dict[str, Any] | None  # the JSON object, or None if there was none
    code: int  # the exit code
    text: str  # what it printed otherwise, for a message
    ran: bool = True  # whether the login ran the command


def ask(action: Any, command: str, program: bytes | None = None) -> Answer:
    """Run a shell command over the action's connection, and return the JSON that it prints.

    The command runs as the task's ``become`` user, if any, with ``program`` as its standard input.
    The login may print other text before and after the JSON. If it did not run the command, the
    answer's text is everything that it printed. Raise AnsibleConnectionFailure if the connection
    failed.
    """
    mark = f"answer-{secrets.token_hex(8)}"
    become = action._connection.become is not None
    done = action._low_level_execute_command(
        f"echo {mark}; {command}",
        sudoable=become,
        # With an input, Ansible requests no terminal. One would mix output and errors.
        in_data=program or (b"\n" if become else None),
    )
    _, marked, printed = str(done["stdout"]).partition(mark)
    value: Any = None
    if marked:
        with contextlib.suppress(ValueError, RecursionError):
            value, _ = json.JSONDecoder().raw_decode(printed.lstrip())
    text = str(done["stderr"]).strip() or printed.strip()
    if not marked:
        text = f"{done['stdout']}\n{done['stderr']}".strip()
    return Answer(value if isinstance(value, dict) else None, int(done["rc"]), text, bool(marked))


def run(action: Any, command: str, program: bytes | None = None) -> dict[str, Any]:
    """Run a shell command as ``ask`` does, and return the JSON that it prints.

    Raise UnreachableError if the connection failed, OSError if the command failed or printed no
    JSON object.
    """
    answer = _ask(action, command, program)
    if answer.value is None or answer.code:
        raise _error(answer)
    return answer.value


def call(
    action: Any, python: str, request: Mapping[str, Any], archive: bytes = b""
) -> dict[str, Any]:
    """Run a program of train/host/calls.py on the action's host, and return its result.

    Args:
        python: see ``interpreter``.
        request: the parameters of the program.
        archive: the modules to send; by default, all are sent.

    Raises:
        UnreachableError: the connection failed.
        OSError: the program failed, or printed no result.
    """
    answer = _ask(action, *command_of(python, request, archive))
    if answer.value is None:
        raise _error(answer)
    if answer.code or answer.value.get("failed"):
        raise OSError(str(answer.value.get("msg") or f"exit code {answer.code}"))
    return answer.value


def command_of(python: str, request: Mapping[str, Any], archive: bytes = b"") -> tuple[str, bytes]:
    """Return the command that runs a program of train/host/calls.py, and its standard input."""
    command = f"{python} -S -E -c {shlex.quote(_PROGRAM)}{_READ_ALL}"
    head = f"{EXIT}{json.dumps(request)}\n".encode()
    return command, head + (archive or launcher.archive())


def _ask(action: Any, command: str, program: bytes | None) -> Answer:
    try:
        return ask(action, command, program)
    except AnsibleConnectionFailure as error:
        raise unreachable(error) from error


def _error(answer: Answer) -> OSError:
    return OSError(answer.text[-500:] or f"exit code {answer.code}, no output")


def harmless(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a program on a host with only harmless values.

    Its markers are replaced by suggested commands.
    """
    done: dict[str, Any] = reports.bounded(found)
    manifest = found.get("manifest")
    if isinstance(manifest, Mapping):
        done["manifest"].update({name: manifest[name] for name in _EXACT if name in manifest})
    for name in ("msg", "warnings"):
        if name in done:
            done[name] = _with_commands(done[name])
    return done


def _with_commands(said: Any) -> Any:
    """Return a host's message or list of warnings, with markers replaced by suggested commands."""
    if isinstance(said, list):
        return [_with_commands(line) for line in said]
    return suggestions.filled(said) if isinstance(said, str) else said


def unreachable(error: AnsibleConnectionFailure) -> UnreachableError:
    """Return an UnreachableError that describes a connection failure in one sentence."""
    failed = login_failures.classify(str(error))
    return UnreachableError(failed.sentence, failed.kind)


def interpreter(variables: Mapping[str, Any], template: Callable[[Any], Any]) -> str:
    """Return a host's Python interpreter, as words for its shell.

    It is set by ``ansible_python_interpreter`` or in Ansible's configuration. With ``auto``, the
    host's shell searches for it in Ansible's order. Ansible itself would need one more command for
    each task.

    Args:
        variables: the host's variables.
        template: renders a value of them.
    """
    setting = functools.partial(constants.config.get_config_value, variables=variables)
    given = str(template(setting("INTERPRETER_PYTHON")) or "").strip()
    if given not in _SEARCHED:
        return " ".join(map(word, shlex.split(given)))
    names = (f"command -v {word(str(name))}" for name in setting("INTERPRETER_PYTHON_FALLBACK"))
    return f'"$({" || ".join(names)} || echo {_FALLBACK})"'


def word(path: str) -> str:
    """Quote a path for a host's shell, which expands the home folder."""
    home, rest = ("~/", path[2:]) if path.startswith("~/") else ("", path)
    return f"{home}{shlex.quote(rest)}"
