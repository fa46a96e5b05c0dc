"""Notifications about a job, to a real command and a real HTTP server."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.hook import TOKEN, Hook
from train.gang import notify

Payload = Callable[..., dict[str, Any]]
#: Sends to a command and a webhook, and returns the errors.
Send = Callable[..., list[str]]


@pytest.fixture
def about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(notify, "PAUSE", 0.01)  # tried again at once
    return {
        "job": "night-1",
        "attempt": 2,
        "state": "failed",
        "message": "worker-1 on node-3 was killed by SIGKILL (signal 9)",
        "run_dir": tmp_path,
        "hosts": ["node-2", "node-3"],
        "root_cause": "worker-1",
        "doubts": [],
        "notes": [],
        "metrics": {"accuracy": 0.5},
    }


@pytest.fixture
def payload(about: dict[str, Any]) -> Payload:
    return lambda event="end", **fields: notify.payload_of(event, **{**about, **fields})


@pytest.fixture
def send(about: dict[str, Any]) -> Send:
    def make(command: str = "", url: str = "", event: str = "end", **fields: Any) -> list[str]:
        return notify.send(([], command, url), event, **{"wait": True, **about, **fields})

    return make


def test_what_a_webhook_gets(hook: Hook, send: Send, about: dict[str, Any], tmp_path: Path) -> None:
    before = time.time()
    assert send(url=hook.url) == []
    (told,) = hook.requests
    assert hook.paths == [f"/services/{TOKEN}"]
    assert before - 1 <= told.pop("time") <= time.time()
    assert told == {
        **about,
        "event": "end",
        "run_dir": str(tmp_path),
        "text": f"job night-1 failed: {about['message']}\naccuracy: 0.5",
    }
    assert not (tmp_path / notify.LOG_FILE).exists()


def test_a_login_in_the_url_is_a_login_also_in_a_second_try(hook: Hook, payload: Payload) -> None:
    hook.answers = [503]
    assert notify.post(hook.url.replace("//", "//me:p%40ss@"), payload()) == ""
    assert hook.logins == 2 * ["Basic " + base64.b64encode(b"me:p@ss").decode()]


def test_every_event_has_a_text(payload: Payload) -> None:
    texts = {
        "start": "job night-1 starts on node-2, node-3",
        "restart": "job night-1 starts again on node-2, node-3 (attempt 2)",
        "failure": "job night-1: attempt 2 failed",
        "end": "job night-1 failed\naccuracy: 0.5",
    }
    assert {event: payload(event, message="")["text"] for event in texts} == texts


def test_doubts_and_notes_are_part_of_the_text(payload: Payload) -> None:
    ended = {"state": "completed", "message": "", "metrics": {}, "doubts": ["a"], "notes": ["b"]}
    secret = {"environments": [{"KEY": "hunter2-is-secret"}]}
    found = payload("end", **{**ended, "doubts": ["a", "hunter2-is-secret"]}, **secret)
    assert found["doubts"][0] == "a"
    assert "hunter2" not in json.dumps(found)
    assert payload("end", **ended)["text"] == "job night-1 completed\ndoubt: a\nnote: b"


def test_a_command_gets_input_and_environment(send: Send, hook: Hook, tmp_path: Path) -> None:
    command = (
        f"cat > {tmp_path}/stdin; env > {tmp_path}/env; "
        f"cat /proc/$$/cmdline /proc/$PPID/cmdline /proc/$PPID/environ > {tmp_path}/seen"
    )
    assert send(command, hook.url, message="two\nlines of 'text' and $HOME") == []
    (told,) = hook.requests  # and no second one
    assert json.loads((tmp_path / "stdin").read_text()) == told
    environment = (tmp_path / "env").read_text()
    for line in ("TRAIN_EVENT=end", "TRAIN_JOB=night-1", "TRAIN_STATE=failed"):
        assert f"{line}\n" in environment
    assert "TRAIN_MESSAGE=two\nlines of 'text' and $HOME\n" in environment
    seen = (tmp_path / "seen").read_bytes()
    assert b"lines of" not in seen, "the message is on a command line"
    assert TOKEN.encode() not in seen + environment.encode(), "others can read the URL"


@pytest.mark.parametrize(
    ("answers", "tries", "said"),
    [
        ([404], 1, "127.0.0.1 answered 404 Not Found"),
        ([302], 1, "127.0.0.1 answered 302 Found"),
        ([500, 799], 2, "127.0.0.1 answered 799"),
    ],
)
def test_a_webhook_that_refuses_is_named_by_its_host_alone(
    hook: Hook, send: Send, tmp_path: Path, answers: list[int], tries: int, said: str
) -> None:
    hook.answers = answers
    (warning,) = send(url=hook.url, event="failure")
    assert warning == f"failure: train_job_notify_webhook: {said}"
    assert len(hook.requests) == tries
    log = (tmp_path / notify.LOG_FILE).read_text()
    assert log.endswith(f" {warning}\n")
    assert TOKEN not in log


NO_URL = "train_job_notify_webhook is not a valid URL such as https://HOST/PATH"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"http://127.0.0.1:1/{TOKEN}", "127.0.0.1 cannot be reached: Connection refused"),
        (f"http://nowhere.invalid/{TOKEN}", "nowhere.invalid cannot be reached: "),
        (f"http://me:{TOKEN}@127.0.0.1:1/x", "127.0.0.1 cannot be reached: Connection refused"),
        (f"http://127.0.0.1:99999/{TOKEN}", "127.0.0.1 cannot be reached: "),
        (f"http://127.0.0.1:1/with space/{TOKEN}", "127.0.0.1 cannot be reached: InvalidURL"),
        (f"file:///etc/{TOKEN}", NO_URL),
        (TOKEN, NO_URL),
        (f"http://[{TOKEN}", NO_URL),
    ],
)
def test_no_warning_repeats_the_url_of_a_webhook(payload: Payload, url: str, said: str) -> None:
    warning = notify.post(url, payload())
    assert said in warning
    assert TOKEN not in warning


def test_webhook_that_hangs(hook: Hook, payload: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "TIMEOUT", 0.2)
    hook.hold.clear()
    warning = notify.post(hook.url, payload())
    assert warning.endswith("127.0.0.1 cannot be reached: no answer within 0.2 s")
    assert len(hook.requests) == 2


def test_what_never_ends_is_left_behind(payload: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    monkeypatch.setattr(notify, "post", lambda *arguments: forever.wait())
    monkeypatch.setattr(notify, "LIMIT", 0.2)
    (problem,) = notify.deliver("true", "https://example.org", payload())
    forever.set()
    assert problem == "train_job_notify_webhook did not finish within 0.2 s"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo no such mailbox >&2; exit 3", "exited with code 3: no such mailbox"),
        ("no-such-program-here", "exited with code 127: "),
        ("kill -KILL $$", "was killed by signal 9"),
    ],
)
def test_a_failed_command_is_told_and_fails_nothing(send: Send, command: str, said: str) -> None:
    (warning,) = send(command, event="start")
    assert warning.startswith(f"start: train_job_notify_command {said}")


def test_a_command_that_does_not_end_is_ended_with_its_children(
    payload: Payload, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(notify, "TIMEOUT", 1.0)
    warning = notify.run_command(f"sleep 600 & echo $! > {tmp_path}/pid; wait", payload())
    assert warning == "train_job_notify_command did not finish within 1 s"
    cmdline = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cmdline")
    wait_until(lambda: not cmdline.exists() or not cmdline.read_bytes(), cmdline)


def test_a_command_may_leave_something_in_the_background(send: Send) -> None:
    began = time.monotonic()
    assert send("sleep 9 & exit 0") == []
    assert time.monotonic() - began < 8, "its output was waited for"


def test_nobody_waits_for_a_start_to_be_told(hook: Hook, send: Send, tmp_path: Path) -> None:
    hook.hold.clear()
    hook.answers = [404]
    assert send(url=hook.url, event="start", wait=False) == []
    hook.wait_for(1)  # the server has not answered yet
    hook.hold.set()
    log = tmp_path / notify.LOG_FILE
    wait_until(lambda: log.exists() and log.read_text(), log)
    assert "start: train_job_notify_webhook: 127.0.0.1 answered 404 Not Found" in log.read_text()


def test_nothing_is_started_to_tell_nobody(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    assert send() == send(wait=False) == []


def test_no_secret_of_the_script_is_told(payload: Payload) -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQ\n-----END KEY-----"
    environments = [
        {"API_TOKEN": "hunter2-is-secret", "THREADS": 4},
        {"API_TOKEN": "another secret", "KEY": key, "EMPTY": ""},
    ]
    lines = {
        "worker-1 exited with code 1: ValueError: hunter2-is-secret is wrong": (
            "worker-1 exited with code 1: ValueError: *** is wrong"
        ),
        "  login with another secret, 4 threads": "  login with ***, 4 threads",
        "  MIIEvQIBADANBg": "  ***",
        "  a line that was cut off: hunter2-is-s": "  a line that was cut off: ***",
    }
    told = payload(
        message="\n".join(lines), metrics={"hunter2-is-secret": 1.0}, environments=environments
    )
    assert told["message"].splitlines() == list(lines.values())
    assert told["metrics"] == {"***": 1.0}
    assert "hunter" not in json.dumps(told)
    assert told["hosts"] == ["node-2", "node-3"]


def test_what_json_does_not_know_is_told_in_words(send: Send, hook: Hook) -> None:
    fields = {"message": "cut \udcff here \0", "metrics": {"loss": float("nan")}}
    assert send('test -n "$TRAIN_MESSAGE"', hook.url, **fields) == []
    (told,) = hook.requests
    assert told["metrics"] == {"loss": "nan"}
    assert told["message"] == "cut ? here "
