"""All ranks of a gang start or none."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from tests.unit.gang.made_up_play import a_play
from train.gang import connections, login_failures, machine_calls, starting
from train.gang.errors import UnreachableError, UserError

AWAY = {"unreachable": True, "msg": login_failures.failure("no-route").text}
STAGED = {"rank": {"attempt": 2}}


def staged(**results: Any) -> Any:
    args = {"hosts": [*results], "registered": "rank", "attempt": 2}
    return starting.require_staged(a_play(results), args)


def test_ranks_that_are_all_staged_start() -> None:
    assert staged(a=STAGED, b=STAGED) == {}


def test_a_rank_of_an_earlier_attempt_is_not_staged() -> None:
    refused = staged(a=STAGED, b={"rank": {"attempt": 1}}, c={})
    assert refused == {"failed": True, "msg": "b and c: did not receive the code"}


def test_hosts_with_the_same_reason_are_named_together() -> None:
    full = {"failed": True, "msg": "no space left\x1b[2J"}
    refused = staged(a=AWAY, b=full, c=full, d=STAGED)
    away, lacking = refused["msg"].rsplit("\n", 1)
    assert away.startswith("a is unreachable: ")
    assert lacking.startswith("b and c: no space left")
    assert "\x1b" not in lacking
    assert "nothing_answered" not in refused


def test_lost_hosts_alone_have_reported_why_themselves() -> None:
    assert staged(a=AWAY, b=STAGED)["nothing_answered"] is True


def test_what_ends_the_job_is_passed_on() -> None:
    refused = staged(a={"msg": "was stopped by anna", "stopped": "was stopped by anna"})
    assert refused["stopped"] == "was stopped by anna"


class Staging:
    """A play whose machines stage and start ranks."""

    def __init__(self, folder: Path, size: int) -> None:
        self.archive = folder / "job.tgz"
        self.archive.write_bytes(b"x" * size)
        self.template = folder / "rank.json.j2"
        self.template.write_text('{"host": "HOST"}')
        self.calls: list[Any] = []
        self.copies: list[tuple[str, str]] = []
        self.commands: list[str] = []
        self.settings: dict[str, str] = {}
        self.environments: dict[str, str] = {}
        self.ranks: dict[str, Any] = {}
        self.hosts, self.host = ["a", "b", "c"], "a"

    def values(self, host: str, *names: str) -> dict[str, Any]:
        if not names or names[0] in self.settings:
            return {name: self.settings[name] for name in names}
        return {names[0]: {"root": f"/{host}"}}

    def rendered(self, host: str, name: str, template: str) -> str:
        return template.replace("HOST", host)

    def names_of_connection_settings(self, host: str) -> list[str]:
        return [f"ansible_become_user of {host}"] if self.settings else []

    def environment(self, host: str) -> dict[str, str]:
        return {"TOKEN": f"secret of {host}"}

    def environment_of(self, host: str) -> str:
        return self.environments.get(host, "SCRATCH=/data")

    def interpreter_of(self, host: str) -> str:
        return "python3"

    def registered(self, host: str, name: str) -> Any:
        rank = {"host_python": "/usr/bin/python3", "rank_dir": f"/jobs/x/{host} 1"}
        return {"rank": self.ranks.get(host, rank)}

    def action_of(self, host: str, purpose: str) -> Any:
        def execute(command: str, **_: object) -> dict[str, Any]:
            begin, command = command.split("; ", 1)
            self.commands.append(command)
            if host == "c":
                raise AnsibleConnectionFailure("Connection refused")
            failed = {"/jobs/x/b 1": "no module"} if "b 1" in command else {}
            printed = f"{begin.split()[1]}\n{json.dumps(failed)}"
            return {"rc": int(bool(failed)), "stdout": printed, "stderr": ""}

        join = SimpleNamespace(join_path=lambda *parts: "/".join(parts))
        return SimpleNamespace(
            host=host,
            _connection=SimpleNamespace(
                _shell=join, become=None, transport="ssh", get_option={"host": host}.__getitem__
            ),
            _low_level_execute_command=execute,
            _make_tmp_path=lambda: f"/tmp/{host}",
            _transfer_file=lambda local, path: self.copies.append((local, path)),
            _fixup_perms2=lambda paths: None,
            _remove_tmp_path=lambda path, force: self.copies.append(("removed", path)),
        )

    def stage(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def call(play: Any, machine: Any, request: Any, known: Any) -> Any:
            self.calls.append((dict(machine.requests), request))
            return machine.each({"rank": {"attempt": 1}})

        monkeypatch.setattr(machine_calls, "call", call)
        about: dict[str, Any] = {"hosts": self.hosts, "options": "my_rank", "beside": BESIDE}
        about |= {"archive": str(self.archive), "readable_by": "owner", "force": False}
        about |= {"manifest": "{}", "template": str(self.template)}
        return starting.stage(self, about)  # type: ignore[arg-type]


def test_a_machine_gets_the_code_once_and_each_rank_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Staging(tmp_path, size=9)
    done = play.stage(monkeypatch)
    assert {*done["hosts"]} == {"a", "b", "c"}
    by_hosts = {tuple(requests): (requests, request) for requests, request in play.calls}
    assert {*by_hosts} == {("a", "b"), ("c",)}
    requests, request = by_hosts["a", "b"]
    assert base64.b64decode(request["content"]) == b"x" * 9
    assert request["call"] == "rank_stages"
    for host, options in requests.items():
        spec = json.loads(options["spec"])
        assert spec == {"host": host, "environment": {"TOKEN": f"secret of {host}"}}
    assert "secret" not in json.dumps(done)
    assert play.copies == []


def test_a_large_archive_is_copied_once_to_each_machine_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Staging(tmp_path, size=600 << 10)
    play.stage(monkeypatch)
    assert sorted(play.copies) == [
        (str(play.archive), "/tmp/a/job.tgz"),
        (str(play.archive), "/tmp/c/job.tgz"),
        ("removed", "/tmp/a"),
        ("removed", "/tmp/c"),
    ]
    assert {request["archive"] for _, request in play.calls} == {"/tmp/a/job.tgz", "/tmp/c/job.tgz"}


def test_a_supervisor_that_does_not_start_prevents_no_other(tmp_path: Path) -> None:
    play: Any = Staging(tmp_path, size=1)
    done: Any = starting.start(play, {"hosts": play.hosts, "registered": "rank", "beside": BESIDE})
    assert done["hosts"]["a"] == {"started": True}
    assert done["hosts"]["b"]["msg"] == "the supervisor did not start: no module"
    assert done["hosts"]["c"]["unreachable"]
    assert done["hosts"]["c"]["msg"].startswith(login_failures.KINDS["refused"].sentence)
    python = "SCRATCH=/data /usr/bin/python3 -S -E programs.zip train.host.supervisor"
    words = f"cd '/jobs/x/a 1/launcher' && {python} '/jobs/x/a 1' '/jobs/x/b 1'"
    assert words in play.commands
    assert len(play.commands) == 2  # one for each machine


BESIDE = {"a": ["a", "b"], "b": ["a", "b"], "c": ["c"]}
PYTHON = "/usr/bin/python3"


@pytest.mark.parametrize(
    "given",
    [
        {"environments": {"b": "SCRATCH=/other"}},
        {"ranks": {"b": {"host_python": "/opt/python3", "rank_dir": "/jobs/x/b 1"}}},
        {"ranks": {"b": {"rank_dir": "/jobs/x/b 1"}}},
        {"ranks": {"b": {"host_python": PYTHON, "rank_dir": 7}}},
        {
            "settings": {
                "ansible_become_user of a": "one",
                "ansible_become_user of b": "other",
                "ansible_become_user of c": "one",
            }
        },
    ],
)
def test_ranks_of_a_machine_that_differ_are_started_separately(
    given: dict[str, Any], tmp_path: Path
) -> None:
    play: Any = Staging(tmp_path, size=1)
    vars(play).update(given)
    done: Any = starting.start(play, {"hosts": play.hosts, "registered": "rank", "beside": BESIDE})
    assert done["hosts"]["a"] == {"started": True}
    assert not done["hosts"]["b"]["started"]
    assert not any("/a 1" in command and "/b 1" in command for command in play.commands)


def test_one_command_starts_a_limited_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_IN_COMMAND", 2)
    play: Any = Staging(tmp_path, size=1)
    play.hosts = [f"h{number}" for number in range(5)]
    beside = dict.fromkeys(play.hosts, play.hosts)
    done: Any = starting.start(play, {"hosts": play.hosts, "registered": "rank", "beside": beside})
    assert all(result == {"started": True} for result in done["hosts"].values())
    assert [len(re.findall(r"h\d 1'", command)) for command in sorted(play.commands)] == [2, 2, 1]


def test_an_attempt_that_cannot_start_is_withdrawn_on_all_hosts(run_dir: Path) -> None:
    asked: dict[str, Any] = {}

    def call(host: str, purpose: str, python: str, request: Any) -> Any:
        asked[host] = request
        if host == "b":
            raise UnreachableError("the connection was refused")
        raise OSError("nothing was started, and the job's leases were released")

    facts = {"host_python": "/usr/bin/python3", "root": "~/train", "lease_dir": "/leases"}
    manifest = {"job": "night", "attempt": 1, "created_at": 1.0, "attempts": [{"claim": "mine"}]}
    ranks = [{"host": host, "task": f"worker-{n}"} for n, host in enumerate("abc")]
    manifest |= {"hosts": dict.fromkeys("abc", facts), "ranks": ranks}
    play = a_play({host: {} for host in "abc"})
    play.call = call
    args = {"manifest": manifest, "run_dir": str(run_dir)}
    with pytest.raises(UserError, match=r"^a and c: nothing was started, .*\nb: the connection"):
        starting.unstage(play, args)
    assert {host: request["task"] for host, request in asked.items()} == {
        "a": "worker-0",
        "b": "worker-1",
        "c": "worker-2",
    }
    assert asked["a"]["root"] == "~/train"
    assert asked["a"]["claim"] == "mine"
    manifest["ranks"] = ranks[:1]
    with pytest.raises(
        UserError, match=r"^nothing was started, and the job's leases were released"
    ):
        starting.unstage(play, args)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job whose first attempt is planned."""
    monkeypatch.setattr(connections, "say", lambda line: None)
    folder = tmp_path / "runs/night"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "code.tar.gz").write_text("code")
    return folder


def lease(run_dir: Path, call: Callable[..., Any], wait: float = 0.0) -> Any:
    host = {"lease_dir": "/tmp/leases", "gpus": [], "host_python": "/usr/bin/python3"}
    ranks = [{"host": "a", "task": "worker-0", "port": 12345, "gpus": None}]
    about = {"created_at": 1.0, "job": "night", "attempt": 1}
    play = a_play({"a": {}})
    play.call = call
    args = {"manifest": {**about, "hosts": {"a": host}, "ranks": ranks}, "run_dir": str(run_dir)}
    return starting.lease(play, {**args, "wait": wait, "unreachable_timeout": 0.0})


def test_what_a_job_waits_for_is_an_event(run_dir: Path) -> None:
    answers: list[Any] = [{"blockers": ["port 12345 is in use"]}, {}, {}]
    asked: list[str] = []

    def call(host: str, purpose: str, python: str, request: Any) -> Any:
        asked.append(request["do"])
        return answers.pop(0)

    assert lease(run_dir, call, wait=60.0) == {}
    assert asked == ["queue", "wait", "take"]
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    shown = [(event["task"], event["phase"], event["reason"]) for event in events]
    assert shown == [
        ("worker-0", "waiting", "port 12345 is in use"),
        ("worker-0", "ready", ""),
    ]


def test_a_job_that_is_stopped_while_it_waits_leaves_nothing(run_dir: Path) -> None:
    stopped = lease(run_dir, lambda *_: {"stopped": "was stopped by anna"})
    message = "nothing was started: the job was stopped by anna"
    assert stopped == {"failed": True, "msg": message, "stopped": "was stopped by anna"}
    assert not (run_dir / "manifest.json").exists()


def test_a_job_that_gives_up_leaves_nothing(run_dir: Path) -> None:
    limit = r"^nothing was started: a: in use; gave up after 0 s \(train_job_queue_timeout\)$"
    with pytest.raises(UserError, match=limit):
        lease(run_dir, lambda *_: {"blockers": ["in use"]})
    assert not (run_dir / "manifest.json").exists()
