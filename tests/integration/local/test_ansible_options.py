"""What ansible-playbook's users type: tags, keywords, callbacks, paths, the script's help."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import PLAIN, train
from tests.support.lab import (
    Lab,
    environment,
    playbook_command,
    run,
)

Labs = Callable[..., Lab]


@pytest.mark.parametrize("name", ["train", "teardown"])
def test_a_tag_that_nothing_has_is_refused(local_lab: Labs, name: str) -> None:
    done = local_lab().playbook(f"{name}.yml", "--tags", "start")
    assert done.returncode == 2
    assert "Nothing here has the tag start" in " ".join(done.stdout.split())


def test_tags_of_the_set_up_are_its_roles(local_lab: Labs) -> None:
    lab = local_lab()
    done = lab.playbook("setup.yml", "--tags", "training_data", setup_roles=["training_data"])
    assert done.returncode == 0, done.stdout
    assert "TASK [training_data : Check the entries]" in done.stdout
    assert "TASK [tensorflow" not in done.stdout
    done = lab.playbook("setup.yml", "--tags", "tensorflow,data")
    assert done.returncode == 2
    shown = " ".join(done.stdout.split())
    assert "Nothing here has the tag data" in shown
    assert "tensorflow, training_data, ssh_keys, firewall" in shown


def play_of(lab: Lab, folder: Path, role: Any = "train_job", **keywords: Any) -> list[str]:
    """Return the words that run a play of a user's own on the lab's inventory."""
    path = folder / "own play.yml"
    play = {
        "hosts": "worker",
        "gather_facts": False,
        "vars": {"train_job_groups": {"worker": "{{ groups.worker }}"}},
        "roles": [role],
        **keywords,
    }
    path.write_text(json.dumps([play]))
    given = lab.given({"train_job_script": str(PLAIN)})
    return playbook_command(str(path), lab.inventory, given)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"strategy": "free"}, "`strategy: free`"),
        ({"serial": 1}, "`serial`, which takes 1 of its 2"),
    ],
)
def test_a_play_whose_hosts_part_is_refused(
    local_lab: Labs, tmp_path: Path, keywords: dict[str, Any], words: str
) -> None:
    lab = local_lab()
    done = run(*play_of(lab, tmp_path, **keywords))
    assert done.returncode == 2
    assert words in " ".join(done.stdout.split()), done.stdout
    assert not lab.runs_dir.exists()


def test_a_limit_is_named_where_a_gang_is_cut(local_lab: Labs) -> None:
    done = local_lab().playbook("train.yml", "--limit", "worker1", train_job_script=str(PLAIN))
    assert done.returncode == 2
    shown = " ".join(done.stdout.split())
    assert "worker0: is not in this play" in shown
    assert "without --limit" in shown


def test_parameters_of_the_role_hold_everywhere(local_lab: Labs, tmp_path: Path) -> None:
    """Also what plugins take for all hosts: here the command that is notified."""
    lab = local_lab()
    notes = tmp_path / "notes"
    role = {
        "role": "train_job",
        "train_job_notify_command": f"echo $TRAIN_EVENT >> {notes}",
        "train_job_environment": {"TOKEN": "quite-secret-value"},
        "train_job_args": ["--steps", 2],
    }
    command = play_of(lab, tmp_path, role=role)
    done = run(*command, env={**environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"})
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(done.stdout)  # no line of the watch next to it
    assert shown["stats"]["worker0"]["failures"] == 0
    assert notes.read_text().split() == ["start", "end"]

    misspelt = play_of(lab, tmp_path, role={"role": "train_job", "train_job_argz": []})
    done = run(*misspelt)
    assert done.returncode == 2
    assert "train_job_argz" in done.stdout


def test_a_folder_that_is_a_file_is_named_without_a_traceback(local_lab: Labs) -> None:
    lab = local_lab()
    lab.runs_dir = Path("/etc/passwd")
    attached = train(*lab.words("attach", "some-job"))
    started = lab.playbook("train.yml", train_job_script=str(PLAIN))
    for done, shown in (attached, attached.stderr), (started, started.stdout):
        assert done.returncode == 2
        assert "/etc/passwd" in shown
        assert "Traceback" not in shown
