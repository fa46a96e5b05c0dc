"""Runs uv to resolve requirements (https://docs.astral.sh/uv), and explains its errors.

If the user has configured a package index for pip but not for uv, uv uses the one for pip.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Sequence

from train.gang.errors import UserError

#: Time limit of a resolution, in seconds.
_LIMIT_S = 600.0
#: Errors that uv prints if it cannot reach an index.
_NO_NETWORK = re.compile(
    r"dns error|failed to lookup|Failed to fetch|error sending request|Connection refused|"
    r"timed out|Network connectivity is disabled",
    re.IGNORECASE,
)
#: Options of pip, and the equivalent variables of uv. Extra indexes are omitted, because uv does
#: not choose among several indexes as pip does.
_OPTIONS = {
    "index-url": "UV_DEFAULT_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
_PASSWORD = re.compile(r"//[^/\s@]*@")


class ResolutionError(UserError):
    """Requirements contradict each other. The message is uv's."""


def compile_lock(arguments: Sequence[str]) -> None:
    """Run ``uv pip compile`` with ``arguments``.

    Raise ResolutionError if there is no solution, UserError if uv cannot run or reach an index.
    """
    command = [_find(), "pip", "compile", "--quiet", "--color=never", *arguments]
    environment = {**of_pip(), **os.environ}
    environment.pop("VIRTUAL_ENV", None)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"uv found no solution within {_LIMIT_S:.0f} s: check that this control node "
            "can reach its package index"
        ) from None
    if done.returncode == 0:
        return
    reason = _reason(done.stderr)
    if _NO_NETWORK.search(done.stderr):
        raise UserError(
            f"this control node cannot reach the package index ({reason}): check the "
            "network, or set another index (UV_DEFAULT_INDEX in the environment, "
            "--index-url in the file)"
        )
    raise ResolutionError(reason)


def of_pip() -> dict[str, str]:
    """Return the user's settings for pip as environment variables for uv."""
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = {}
    for line in done.stdout.splitlines():  # such as global.index-url='https://pypi.org/simple'
        option, _, text = line.partition("=")
        section, _, name = option.rpartition(".")
        if section in ("global", "install", ":env:") and name in _OPTIONS:
            found[_OPTIONS[name]] = " ".join(ast.literal_eval(text).split())
    return found


def _find() -> str:
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        raise UserError(
            "uv, which locks the packages of a script, is not installed in the control node's "
            "environment: install the packages of requirements/control.txt in that environment"
        ) from None


def without_passwords(text: str) -> str:
    """Return a text with the credentials in its URLs masked."""
    return _PASSWORD.sub("//***@", text)


def last_lines(errors: str, most: int = 10) -> str:
    """Return at most ``most`` last lines of a program's standard error, without passwords."""
    lines = [line for line in without_passwords(errors).splitlines() if line.strip()]
    return "\n".join(lines[-most:])


def _reason(errors: str) -> str:
    """Return uv's reason on one line, without its hints."""
    text = without_passwords(errors).strip().split("\nhint:")[0]
    causes = re.split(r"^\s*(?:error|cause):", text, flags=re.MULTILINE)
    last = next((cause for cause in reversed(causes) if cause.strip()), text)
    return " ".join(last.split())
