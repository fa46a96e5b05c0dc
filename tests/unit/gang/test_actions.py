"""The actions of the role: their options, and how their errors end."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from train.gang import actions, connections, host_programs
from train.gang.actions import GangAction, HostAction, ObservingAction
from train.gang.errors import BusyError, NothingAnsweredError, UserError

VARIABLES: dict[str, Any] = {
    "inventory_hostname": "node-1",
    "hostvars": {},
    "ansible_play_hosts_all": ["node-1"],
    "ansible_play_batch": ["node-1"],
}
WATCH = {"run_dir": "/runs/night", "job": "night"}


def made(kind: type[Any], options: Any, command: Callable[[str], Any] | None = None) -> Any:
    """Return an action with the options of its task, and a command's result on its host."""
    gang = SimpleNamespace(strategy="linear", serial=None)
    task = SimpleNamespace(args=options, check_mode=False, async_val=0, get_play=lambda: gang)
    task.diff = False
    connection = SimpleNamespace(transport="ssh", become=None, get_option={}.__getitem__)
    connection._shell = SimpleNamespace(tmpdir="/tmp")
    action = kind(task, connection, *[None] * 4)
    action._low_level_execute_command = command
    return action


def of_gang(kind: Any, error: Exception | None = None) -> Any:
    """Return an action that raises an error, or returns its options."""

    class Action(kind):  # type: ignore[misc]
        @staticmethod
        def decide(play: connections.Play, options: Any, /) -> Any:
            if error:
                raise error
            return {"options": options, "host": play.host}

    Action.name = "gang_lease"
    return Action


LEASE = {
    **{"run_dir": "/runs/night", "manifest": {"job": "night"}},
    **{"wait": "60", "unreachable_timeout": 5.0},
}


def test_options_have_the_types_of_the_documentation() -> None:
    done = made(of_gang(GangAction), LEASE).run(None, VARIABLES)
    assert done["host"] == "node-1"
    assert done["options"] == {**LEASE, "wait": 60.0}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"wait": "long"}, "gang_lease: argument 'wait' is of type"),
        ({"wait": None}, "gang_lease: missing required arguments: wait"),
        ({"pause": 60}, "gang_lease: has no option pause."),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(changed: Any, message: str) -> None:
    options = {name: value for name, value in {**LEASE, **changed}.items() if value is not None}
    with pytest.raises(AnsibleActionFail, match=message):
        made(of_gang(GangAction, AssertionError("it runs")), options).run(None, VARIABLES)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (UserError("no such script"), {"msg": "no such script"}),
        (BusyError("is followed"), {"msg": "is followed"}),
        (ValueError("not a number"), {"msg": "not a number"}),
        (NothingAnsweredError("nobody"), {"msg": "nobody", "nothing_answered": True}),
    ],
)
def test_an_error_of_the_user_is_the_tasks_message(error: Exception, result: Any) -> None:
    action = made(of_gang(GangAction, error), {})
    assert action.act({}, VARIABLES) == {"failed": True, **result}


def test_a_bug_is_not_hidden_as_a_message() -> None:
    with pytest.raises(KeyError):
        made(of_gang(GangAction, KeyError("bug")), {}).act({}, VARIABLES)


def test_a_gang_needs_a_play_that_runs_its_hosts_together() -> None:
    action = made(of_gang(GangAction), {})
    action._task.get_play().strategy = "ansible.builtin.free"
    refused = action.act({}, VARIABLES)
    assert refused["msg"].startswith("this play has `strategy: free`")
    action._task.get_play().strategy = "ansible.builtin.linear"
    assert "failed" not in action.act({}, VARIABLES)
    action._task.get_play().serial = [1]
    everyone = {**VARIABLES, "ansible_play_hosts_all": ["node-1", "node-2"]}
    refused = action.act({}, everyone)
    assert "runs on 1 of its 2 hosts at a time" in refused["msg"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("No space left"), "stopped following the job: No space left"),
        (KeyError("bug"), "stopped following the job: KeyError('bug')"),
    ],
)
def test_an_error_of_a_watch_leaves_the_job_alone(error: Exception, said: str) -> None:
    action = made(of_gang(ObservingAction, error), {})
    for options in (WATCH, {"run_dir": "/runs/night"}):
        ended = action.act(options, VARIABLES)
        assert (ended["failed"], ended["left_running"]) == (True, True)
        assert ended["msg"].startswith(f"{said}; the job itself is not affected: attach again with")
        assert "night`" in ended["msg"]
    assert action.act({"run_dir": "/tmp/my logs"}, VARIABLES)["msg"].endswith(
        ": attach to the job again"
    )


class OnHost(HostAction):
    """An action whose program's result is given."""

    def call(self, options: Any, task_vars: Any, **more: Any) -> Any:
        if isinstance(options["given"], Exception):
            raise options["given"]
        return super().call(options, task_vars, **more)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run an action whose program has an answer on a host with or without Python."""
    monkeypatch.setattr(actions, "_argument_spec", lambda name: {"given": {"type": "raw"}})
    monkeypatch.setattr(actions, "results_of", lambda name: {"rank"})

    def run(value: Any, code: int = 0, text: str = "", pythons: str = "/usr/bin/python3") -> Any:
        answer = host_programs.Answer(value, code, text)
        monkeypatch.setattr(host_programs, "ask", lambda *_: answer)
        action = made(OnHost, {"given": ""}, lambda command: {"stdout": pythons})
        action._templar = SimpleNamespace(template=lambda value: value)
        action._compute_environment_string = lambda: ""
        return action.run(None, VARIABLES)

    return run


def test_commands_that_a_host_suggests_are_filled_in(on_host: Callable[..., Any]) -> None:
    marker = "run `<suggest setup tags=tensorflow>`"
    done = on_host({"failed": True, "msg": marker, "warnings": [marker, 3]}, 1)
    assert "setup" in done["msg"]
    assert "<suggest" not in done["msg"]
    assert done["warnings"] == [done["msg"], 3]


def test_a_result_has_only_what_the_documentation_names(on_host: Callable[..., Any]) -> None:
    evil = {"name": "localhost", "variables": {"ansible_connection": "local"}}
    orders = {"add_host": evil, "ansible_facts": evil, "_ansible_no_log": True, "invocation": evil}
    done = on_host({"rank": {"task": "worker\x1b[2J-0"}, "changed": True, **orders})
    assert done == {"rank": {"task": "worker-0"}, "changed": True}


def test_a_host_without_python_is_unreachable(on_host: Callable[..., Any]) -> None:
    lost = on_host(None, 127, "sh: 1: /usr/bin/python3: not found", pythons="")
    assert lost["unreachable"]
    assert lost["msg"].startswith("the host has no Python\n")
    there = on_host(None, 127, "gone")
    assert "unreachable" not in there


def test_the_errors_of_a_program_are_part_of_its_message(on_host: Callable[..., Any]) -> None:
    done = on_host(None, 1, 400 * "x" + "\nOSError: gone")
    assert done["failed"]
    assert done["msg"] == f"the host's Python printed no result: {'x' * 286} OSError: gone"


def test_a_connection_that_fails_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "_argument_spec", lambda name: {"given": {"type": "raw"}})
    refused = AnsibleConnectionFailure("ssh: connect to host a port 22: Connection refused")
    lost = made(OnHost, {"given": refused}).run(None, VARIABLES)
    assert lost["unreachable"]
    assert lost["msg"].startswith("the connection was refused: no SSH server listens")
    failed = made(OnHost, {"given": UserError("not here")}).run(None, VARIABLES)
    assert failed == {"failed": True, "msg": "not here"}
