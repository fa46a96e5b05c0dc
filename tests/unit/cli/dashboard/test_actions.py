"""Commands that viewers start."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from train.cli import inventories
from train.cli.ansible_options import AnsibleOptions
from train.cli.dashboard.actions import Action, Actions
from train.gang.errors import UserError

#: Prints its arguments and the files that it is given, with control characters.
PROGRAM = """
import json, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
read = {}
for word in sys.argv[1:]:
    name, equals, path = word.partition("=")
    path = path.lstrip("@")
    if equals and path.startswith("/"):
        read[name] = open(path).read()
print("\\x1b[1m" + json.dumps([sys.argv[1:], read]), flush=True)
if "tensorboard" in sys.argv:
    print("TensorBoard on a: http://127.0.0.1:6006/abc/ (press Ctrl-C to stop)", flush=True)
    time.sleep(60)
sys.exit(4)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "night").mkdir()
    return tmp_path


def actions_of(runs: Path, **options: Any) -> Actions:
    variables = {"train_job_runs_dir": str(runs), "secret": "in a file"}
    given = AnsibleOptions(("a,b",), ("--user=anna",), **options)
    return Actions(given, variables, (sys.executable, "-c", PROGRAM))


def ended(action: Action) -> tuple[list[str], dict[str, str]]:
    wait_until(lambda: action.code is not None, action)
    words, read = json.loads(action.lines[0])
    return words, read


def test_a_command_gets_the_options_and_no_secret_in_its_words(runs: Path) -> None:
    passwords = (("--become-password-file=", "swordfish"),)
    action = actions_of(runs, passwords=passwords).start("stop", "night")
    words, read = ended(action)
    assert (words[0], words[-1]) == ("stop", "night")
    assert words[2:4] == ["-i", "a,b"]
    assert "--user=anna" in words
    assert "secret" in read["--extra-vars"]
    assert read["--become-password-file"] == "swordfish"
    assert "swordfish" not in str(words)
    assert "in a file" not in str(words)
    assert action.outcome == "a host is unreachable (exit code 4)"
    assert action.command == "train stop night"


def test_a_job_of_this_machine_is_reached_as_at_its_start(runs: Path) -> None:
    inventories.keep(runs / "night", AnsibleOptions(("c,d",)), {})
    words, _ = ended(actions_of(runs).start("stop", "night"))
    assert "-i" not in words
    asked = AnsibleOptions(("c,d",), (), (("--become-password-file=", "x"),))
    inventories.keep(runs / "night", asked, {})
    words, _ = ended(actions_of(runs).start("stop", "night"))
    assert "a,b" in words, "the dashboard's own passwords are needed"


def test_the_same_command_does_not_run_twice_at_a_time(runs: Path) -> None:
    actions = actions_of(runs)
    board = actions.start("tensorboard", "night")
    with pytest.raises(UserError, match="`train tensorboard night` is already running"):
        actions.start("tensorboard", "night")
    ended(actions.start("stop", "night"))
    assert [action.kind for action in actions.of_job("night")] == ["stop", "tensorboard"]
    wait_until(lambda: bool(board.address), board)
    assert board.address == "http://127.0.0.1:6006/abc/"
    began = time.monotonic()
    actions.close()
    wait_until(lambda: board.code is not None, board)
    assert time.monotonic() - began < 20
    assert actions.get(1) is board
    assert actions.get(9) is None


#: Starts an action, and ends like a dashboard that is ended, while the action still runs.
DASHBOARD = """
import os, sys
from pathlib import Path
from tests.support.bare_ranks import wait_until
from train.cli.ansible_options import AnsibleOptions
from train.cli.dashboard.actions import Actions

given, marker = AnsibleOptions(("a,b",)), sys.argv[2]
program = (sys.executable, "-c", sys.argv[3], marker)
actions = Actions(given, {"train_job_runs_dir": sys.argv[1]}, program)
action = actions.start("restart", "night")
wait_until(lambda: bool(action.output), action)
actions.close()
"""
#: Prints while its marker has no other content, then ends.
PRINTS = """
import sys, time
from pathlib import Path

marker = Path(sys.argv[1])
marker.write_text("begun")
while marker.read_text() == "begun":
    print("progress", flush=True)
    time.sleep(0.05)
print("more", flush=True)
marker.write_text("completed")
"""


def test_a_command_continues_when_the_dashboard_ends(runs: Path) -> None:
    marker = runs / "marker"
    words = [sys.executable, "-c", DASHBOARD, str(runs), str(marker), PRINTS]
    subprocess.run(words, check=True, timeout=60)
    marker.write_text("dashboard has ended")
    wait_until(lambda: marker.read_text() == "completed", marker)


def test_an_action_that_cannot_be_started_has_failed(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(run_dir: Path) -> None:
        raise TypeError("odd file")

    monkeypatch.setattr(inventories, "kept", kept)
    action = actions_of(runs).start("stop", "night")
    wait_until(lambda: action.code is not None, action)
    assert (action.code, action.output) == (1, ["odd file"])
