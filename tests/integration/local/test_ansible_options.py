"""What ansible-playbook's users type: tags, keywords, callbacks, paths, the script's help."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import PLAIN, train
from tests.support.lab import REPOSITORY, Lab, environment, playbook_command, write_local_inventory

Labs = Callable[..., Lab]


def run(*command: str, cwd: Path = REPOSITORY, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**environment(), **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("name", ["train", "stop", "list", "teardown"])
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


def play_of(lab: Lab, folder: Path, *options: str, role: Any = "train_job", **keywords: Any) -> Any:
    """Run a play of a user's own on the lab's inventory."""
    path = folder / "own play.yml"
    members = "{{ groups.worker }}"
    play = {
        "hosts": "worker",
        "gather_facts": False,
        "vars": {"train_job_groups": {"worker": members}},
        "roles": [role],
        **keywords,
    }
    path.write_text(json.dumps([play]))
    given = {
        **lab.variables,
        "train_job_runs_dir": str(lab.runs_dir),
        "train_job_script": str(PLAIN),
    }
    command = playbook_command("train.yml", lab.inventory, given, *options)
    command[1] = str(path)
    return command


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
    done = run(*command, ANSIBLE_STDOUT_CALLBACK="ansible.posix.json")
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
    wrong = {**lab.variables, "train_job_runs_dir": "/etc/passwd"}
    given = ["-i", str(lab.inventory), "-e", json.dumps(wrong)]
    for words in (["run", "--script", str(PLAIN)], ["attach", "some-job"]):
        done = train(*words, *given)
        assert done.returncode != 0
        assert "/etc/passwd" in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
    lab.runs_dir = Path("/etc/passwd")
    done = lab.playbook("train.yml", train_job_script=str(PLAIN))
    assert done.returncode == 2
    assert "/etc/passwd" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_run_without_its_inventory_leaves_nothing(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done = train("run", "-i", "/nonexistent", "-e", f"train_job_runs_dir={runs}")
    assert done.returncode == 2
    assert "there is no inventory /nonexistent" in done.stderr
    assert not runs.exists() or list(runs.iterdir()) == []


def test_the_scripts_own_help(local_lab: Labs, tmp_path: Path) -> None:
    done = train("run", "--", "--help")
    assert done.returncode == 0, done.stderr
    assert "usage: worker.py" in done.stdout
    lab = local_lab()
    python = lab.variables["train_job_python"]
    done = train("run", "--script", str(PLAIN), "-e", f"train_job_python={python}", "--", "-h")
    assert done.returncode == 0, done.stderr
    assert "--exit-early" in done.stdout
    done = train("run", "--script", str(PLAIN), "-e", "train_job_python=/no/python", "--", "--help")
    assert done.returncode == 2
    assert "this machine has no /no/python" in done.stderr


def test_paths_with_spaces_everywhere(tmp_path: Path) -> None:
    """The repository, the inventory, the script, the hosts' and the control node's folders."""
    copy = tmp_path / "my repository"
    copy.mkdir()
    for name in ("train", "roles", "playbooks", "inventory"):
        shutil.copytree(
            REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(REPOSITORY / "ansible.cfg", copy)
    script = tmp_path / "my script"
    shutil.copytree(PLAIN, script)
    folder = tmp_path / "my inventory"
    folder.mkdir()
    inventory = write_local_inventory(folder, {"worker": 2})
    given = {
        "train_job_root": str(tmp_path / "the hosts"),
        "train_job_python": sys.executable,
        "train_job_runs_dir": str(tmp_path / "my runs"),
    }
    words = ["-i", str(inventory), "-e", json.dumps(given), "--job", "spaced"]
    done = run(
        *(sys.executable, "-m", "train", "run", *words),
        *("--script", str(script), "--", "--steps", "2"),
        cwd=copy,
        ANSIBLE_CONFIG=str(copy / "ansible.cfg"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "my runs/spaced/result.json").read_text())["state"] == "completed"
