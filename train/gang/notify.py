"""Sends notifications about a job: runs a command on the control node and calls a webhook.

A separate process does both and always ends within LIMIT seconds, so a notification never fails or
delays a job.

    python -m train.gang.notify < REQUEST

is that process. It reads a JSON object with ``command``, ``webhook`` and ``payload``, prints
errors, and appends them to LOG_FILE in the job's folder.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from train.gang import REPOSITORY, lines
from train.host.masking import Mask

#: The file for errors, in the job's folder on the control node.
LOG_FILE = "notify.log"
#: Timeout in seconds of the command, and of each of the two attempts at the webhook.
TIMEOUT = 10.0
#: Maximum bytes of a variable in the command's environment. Linux rejects 128 KiB, and also limits
#: the total of all variables.
LONGEST_VARIABLE = 32_768
#: Seconds before the second attempt.
PAUSE = 1.0
#: Seconds after which a notification is abandoned.
LIMIT = 2 * TIMEOUT + PAUSE + 1.0

#: A message. docs/formats.md describes every field.
Payload = Mapping[str, Any]
#: Environments of the job's scripts, whose values must not appear in a message; a command; a URL.
Recipients = tuple[Sequence[Mapping[str, object]], str, str]


def send(recipients: Recipients, event: str, *, wait: bool, **about: Any) -> list[str]:
    """Notify the recipients about ``event``; for ``about``, see ``payload_of``.

    With ``wait``, wait for the process for a limited time and return its errors, which are also in
    the job's LOG_FILE. Otherwise, return an error only if the process cannot be started.
    """
    environments, command, webhook = recipients
    if not command and not webhook:
        return []
    payload = payload_of(event, environments=environments, **about)
    request = {"command": command, "webhook": webhook, "payload": payload}
    try:
        # Not in the process's arguments or environment, where other users could read the URL.
        with _file_of(request) as stdin:
            child = subprocess.Popen(
                [sys.executable, "-m", "train.gang.notify"],
                cwd=REPOSITORY,
                stdin=stdin,
                stdout=subprocess.PIPE if wait else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # ignore Ctrl-C
            )
    except OSError as error:
        return [f"the notification for {event} could not be started: {error.strerror}"]
    if not wait:
        return []
    try:
        said, _ = child.communicate(timeout=LIMIT + TIMEOUT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return [f"the notification for {event} did not finish within {LIMIT + TIMEOUT:g} s"]
    return list(filter(None, [said.strip()]))


@contextlib.contextmanager
def _file_of(value: object) -> Iterator[IO[bytes]]:
    """Yield a file that contains a value as JSON, for the standard input of a process."""
    with tempfile.TemporaryFile() as stream:
        stream.write(json.dumps(value, sort_keys=True).encode() + b"\n")
        stream.seek(0)
        yield stream


def payload_of(
    event: str,
    *,
    job: str,
    attempt: int,
    state: str,
    message: str,
    run_dir: str | Path,
    hosts: Sequence[str],
    root_cause: str | None = None,
    doubts: Sequence[str] = (),
    notes: Sequence[str] = (),
    metrics: Mapping[str, float | str] | None = None,
    environments: Iterable[Mapping[str, object]] = (),
) -> dict[str, Any]:
    """Return the message about ``start``, ``restart``, ``failure`` or ``end``.

    Args:
        state: state of the job: ``starting``, ``completed``, ``failed`` or ``stopped``.
        doubts, notes: as in ``result.json``.
        message: for people. It may contain lines of a log.
        environments: environments of the scripts. Their values are removed from texts that the
            script may have printed: the message, the doubts, the notes and the metrics.
    """
    mask = Mask(environments, every=True)
    message, metrics = _clean(message, mask), _clean(dict(metrics or {}), mask)
    doubts, notes = _clean(list(doubts), mask), _clean(list(notes), mask)
    where = ", ".join(hosts)
    text = {
        "start": f"job {job} starts on {where}",
        "restart": f"job {job} starts again on {where} (attempt {attempt})",
        "failure": f"job {job}: attempt {attempt} failed",
        "end": f"job {job} {state}",
    }[event]
    if message:
        text += f": {message}"
    if event == "end":
        text += "".join(f"\n{line}" for line in lines.remarks(doubts, notes))
    if event == "end" and metrics:
        text += "".join(f"\n{name}: {value}" for name, value in metrics.items())
    payload = {
        "event": event,
        "job": job,
        "attempt": attempt,
        "state": state,
        "root_cause": root_cause,
        "message": message,
        "doubts": doubts,
        "notes": notes,
        "metrics": metrics,
        "hosts": list(hosts),
        "run_dir": str(run_dir),
        "time": round(time.time(), 3),
        "text": text,
    }
    cleaned: dict[str, Any] = _clean(payload, Mask([]))
    return cleaned


def _clean(value: Any, mask: Mask) -> Any:
    """Return a value for JSON without secrets, NaN or invalid UTF-8."""
    if isinstance(value, str):
        return mask.text(value).encode("utf-8", "replace").decode().replace("\0", "")
    if isinstance(value, Mapping):
        return {_clean(str(key), mask): _clean(item, mask) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, mask) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _for_environment(value: object) -> str:
    """Return the value of a variable, cut off if the kernel would reject its length."""
    text = str(value)
    data = text.encode("utf-8", "replace")
    if len(data) <= LONGEST_VARIABLE:
        return text
    return data[:LONGEST_VARIABLE].decode("utf-8", "ignore") + " [truncated: see standard input]"


def run_command(command: str, payload: Payload) -> str:
    """Run ``command`` with the payload as JSON on its standard input.

    Its main fields are also in environment variables. Return an error message, or an empty string.
    """
    names = ("event", "job", "state", "message")
    variables = {f"TRAIN_{name.upper()}": _for_environment(payload[name]) for name in names}
    # Files, not pipes: background processes of the command may keep them open.
    with _file_of(payload) as stdin, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env={**os.environ, **variables},
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"train_job_notify_command did not finish within {TIMEOUT:g} s"
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
    if code == 0:
        return ""
    ended = f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"
    return f"train_job_notify_command {ended}" + (f": {said[-1].strip()[:300]}" if said else "")


class _Stay(urllib.request.HTTPRedirectHandler):
    """Rejects redirects: the message is only for the configured host."""

    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        """Return nothing, so that the answer counts as an error."""


def post(webhook: str, payload: Payload) -> str:
    """Send the payload as JSON to ``webhook``, with a second attempt after temporary errors.

    Return an error message, or an empty string. The message contains no part of the URL except its
    host.
    """
    try:
        url = urlsplit(webhook)
        host = url.hostname
    except ValueError:
        host = None
    if not host or url.scheme not in ("http", "https"):
        return "train_job_notify_webhook is not a valid URL such as https://HOST/PATH"
    headers = {"Content-Type": "application/json", "User-Agent": "tensorflow-ansible"}
    login, at, netloc = url.netloc.rpartition("@")
    if at:  # urllib would resolve it as a part of the host's name
        encoded = base64.b64encode(unquote(login).encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
    opener = urllib.request.build_opener(_Stay)
    problem = ""
    for again in (False, True):
        if again:
            time.sleep(PAUSE)
        try:
            request = urllib.request.Request(
                url._replace(netloc=netloc).geturl(),
                data=json.dumps(payload, sort_keys=True).encode(),
                headers=headers,
                method="POST",
            )
            opener.open(request, timeout=TIMEOUT).close()
            return ""
        except urllib.error.HTTPError as error:
            error.close()
            phrase = http.client.responses.get(error.code, "")
            problem = f"answered {error.code} {phrase}".rstrip()
            if error.code < 500 and error.code not in (408, 429):
                break
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            problem = f"cannot be reached: {_reason(cause)}"
    return f"train_job_notify_webhook: {host} {problem}"


def _reason(error: object) -> str:
    """Return the message of an operating system error. Other messages might repeat the URL."""
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    strerror = error.strerror if isinstance(error, OSError) else None
    return str(strerror or type(error).__name__)


def deliver(command: str, webhook: str, payload: Payload) -> list[str]:
    """Run the command and call the webhook at the same time. Return error messages."""
    pool = ThreadPoolExecutor(2)
    work = {}
    if command:
        work["train_job_notify_command"] = pool.submit(run_command, command, payload)
    if webhook:
        work["train_job_notify_webhook"] = pool.submit(post, webhook, payload)
    deadline = time.monotonic() + LIMIT
    errors = []
    for name, future in work.items():
        try:
            errors.append(future.result(max(0.0, deadline - time.monotonic())))
        except TimeoutError:  # resolving a host's name has no time limit
            errors.append(f"{name} did not finish within {LIMIT:g} s")
        except Exception as error:  # the text may contain the URL or the command's input
            errors.append(f"{name} failed: {type(error).__name__}")
    return list(filter(None, errors))


def main() -> None:
    """Process the request on standard input."""
    request = json.load(sys.stdin)
    payload = request["payload"]
    errors = deliver(request["command"], request["webhook"], payload)
    for problem in errors:
        print(f"{payload['event']}: {problem}")
    if errors:
        # The job's folder may have been removed.
        path = Path(payload["run_dir"], LOG_FILE)
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as log:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            log.writelines(f"{now} {payload['event']}: {line}\n" for line in errors)
    sys.stdout.flush()
    os._exit(0)  # abandon threads that hang


if __name__ == "__main__":
    main()
