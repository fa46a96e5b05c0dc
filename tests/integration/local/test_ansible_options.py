"""Input from users of ansible-playbook: tags, variables, callbacks and their own plays."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import PLAIN, write_script
from tests.support.lab import REPOSITORY, Lab, Labs, environment, free_port, playbook_command, run
from tests.support.set_up_role import run_plays

#: The full name of the role.
TRAIN_JOB = "tensorflow_ansible.cluster.train_job"
#: Values of wrong types, which are all reported at once.
SPECIFIED = {
    "train_job_port": "many",
    "train_job_keras": 4,
    "train_job_args": {"a": 1},
    "train_job_environment": "x",
}
NOWHERE = {"train_job_address": "{{ nowhere }}"}
TAGS = ["--tags", "start"]
LIMIT = ["--limit", "worker1"]


@pytest.mark.parametrize(
    ("playbook", "options", "variables", "messages"),
    [
        ("train", TAGS, {}, ["No play or task has the tag start"]),
        ("teardown", TAGS, {}, ["No play or task has the tag start"]),
        ("train", LIMIT, {}, ["worker0: is not in this play", "without --limit"]),
        ("train", [], SPECIFIED, [*SPECIFIED, "expected one of 2, 3"]),
        ("train", [], {"train_job_runs_dir": "/etc/passwd"}, ["/etc/passwd"]),
        ("doctor", [], NOWHERE, ["train_job_address of worker0: 'nowhere' is undefined"]),
    ],
)
def test_what_is_wrong_is_named_before_anything_starts(
    local_lab: Labs,
    playbook: str,
    options: list[str],
    variables: dict[str, Any],
    messages: list[str],
) -> None:
    refused(local_lab(), playbook, options, {"train_job_script": str(PLAIN), **variables}, messages)


def test_arguments_of_the_script_are_checked_before_anything_starts(lab: Lab) -> None:
    given = {
        "train_job_script": str(REPOSITORY / "train/worker.py"),
        "train_job_args": ["--batch-size", "63"],
    }
    uneven = "--batch-size 63 (global) cannot be divided evenly among 2 replicas"
    refused(lab, "train", [], given, [uneven])


def refused(
    lab: Lab, playbook: str, options: list[str], given: dict[str, Any], messages: list[str]
) -> None:
    """Run a playbook that fails with messages and changes nothing."""
    done = lab.playbook(f"{playbook}.yml", *options, **given)
    assert done.returncode == 2
    shown = " ".join(done.stdout.split())
    for message in messages:
        assert message in shown
    assert "Traceback" not in shown
    assert not (lab.root / "jobs").exists()
    assert not lab.runs_dir.exists() or not list(lab.runs_dir.iterdir())


def test_tags_of_the_set_up_are_its_roles(local_lab: Labs) -> None:
    lab = local_lab()
    done = lab.playbook("setup.yml", "--tags", "training_data", "-v", setup_roles=["training_data"])
    assert done.returncode == 0, done.stdout
    assert (
        "TASK [tensorflow_ansible.cluster.training_data : Preflight | Check the names]"
        in done.stdout
    )
    assert "TASK [tensorflow_ansible.cluster.tensorflow" not in done.stdout
    done = lab.playbook("setup.yml", "--tags", "tensorflow,data")
    assert done.returncode == 2
    shown = " ".join(done.stdout.split())
    assert "No play or task has the tag data" in shown
    assert "tensorflow, training_data, ssh_keys, firewall" in shown


def play_of(lab: Lab, folder: Path, role: Any = TRAIN_JOB, **keywords: Any) -> list[str]:
    """Return the command that runs a user's own play on the lab's inventory."""
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
        ({"serial": 1}, "`serial` and so runs on 1 of its 2"),
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


def test_parameters_of_the_role_hold_everywhere(local_lab: Labs, tmp_path: Path) -> None:
    """They apply to values that plugins read for all hosts, too, such as the command to notify."""
    lab = local_lab()
    notes = tmp_path / "notes"
    role = {
        "role": TRAIN_JOB,
        "train_job_notify_command": f"echo $TRAIN_EVENT >> {notes}",
        "train_job_environment": {"TOKEN": "quite-secret-value"},
        "train_job_args": ["--steps", 2],
    }
    command = play_of(lab, tmp_path, role=role)
    done = run(*command, env={**environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"})
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(done.stdout)  # without lines of the watch
    assert shown["stats"]["worker0"]["failures"] == 0
    assert notes.read_text().split() == ["start", "end"]

    misspelt = play_of(lab, tmp_path, role={"role": TRAIN_JOB, "train_job_argz": []})
    done = run(*misspelt)
    assert done.returncode == 2
    assert "train_job_argz" in done.stdout


def test_the_role_runs_a_job_without_a_setting_of_this_repository(tmp_path: Path) -> None:
    text = "import json, os\nprint(json.loads(os.environ['TF_CONFIG'])['task'])\n"
    variables = {
        "train_job_groups": {"worker": ["localhost"], "chief": [], "ps": [], "evaluator": []},
        "train_job_script": write_script(tmp_path, text),
        "train_job_root": str(tmp_path / "train"),
        "train_job_runs_dir": str(tmp_path / "runs"),
        "train_job_lease_dir": str(tmp_path / "leases"),
        "train_job_python": sys.executable,
        "train_job_port": free_port(),
    }
    play = {"hosts": "localhost", "gather_facts": False, "roles": [TRAIN_JOB], "vars": variables}
    run_plays(tmp_path, "another-host,", [play]).checked()
    (result,) = (tmp_path / "runs").glob("*/result.json")
    assert json.loads(result.read_text())["state"] == "completed"
