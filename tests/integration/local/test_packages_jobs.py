"""A script's packages are installed: ``run --requirements`` on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support import wheels
from tests.support.lab import Command, Lab, Labs
from tests.support.lab import run as run_command

pytestmark = pytest.mark.tensorflow

SCRIPT = """\
import json, os
import trainpack
print("trainpack", trainpack.NAME)
for step in range(1, 4):
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as file:
        print(json.dumps({"step": step, "steps": 3, "loss": 1 / step}), file=file)
"""


@pytest.fixture
def script(tmp_path: Path, lab: Lab) -> Path:
    """Return a script that needs a package which no index has, and TensorFlow."""
    lab.doubtful = True  # it forms no gang
    return make_script(tmp_path, "tensorflow", "trainpack")


def make_script(tmp_path: Path, *requirements: str) -> Path:
    """Return a script with a ``requirements.txt``. A wheel of ``trainpack`` is in a folder."""
    folder = tmp_path / "script"
    index = tmp_path / "index"
    folder.mkdir()
    index.mkdir()
    # A name that only this test uses, because environments are named after their packages.
    wheels.write(index, "trainpack-1.0-py3-none-any", code=f"NAME = {str(tmp_path)!r}\n")
    (folder / "main.py").write_text(SCRIPT)
    lines = ["--no-index", f"--find-links {index}", *requirements]
    (folder / "requirements.txt").write_text("\n".join(lines) + "\n")
    return folder


def packages_of(lab: Lab, job: str) -> Path:
    manifest = json.loads((lab.runs_dir / job / "manifest.json").read_text())
    name: str = manifest["packages"]["name"]
    return Path(lab.variables["train_job_python"]).parents[2] / name


def test_packages_are_installed_once_and_go_with_the_last_job(lab: Lab, script: Path) -> None:
    bare = lab.run("--script", str(script), "--job", "bare")
    warned = [event["text"] for event in bare.events if event["event"] == "notice"]
    both = "trainpack is not installed on worker0 and worker1"
    named = f"warning: {both}; {script}/requirements.txt lists trainpack: pass --requirements"
    assert named in warned
    assert bare.code == 1
    assert "add trainpack to requirements.txt" in bare.result["message"]

    # Before any job requests them.
    requirements = str(script / "requirements.txt")
    done = lab.playbook(
        "setup.yml", train_job_requirements=requirements, setup_roles=["tensorflow"]
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Install packages on top of it: changed on worker0" in done.stdout
    assert "WARNING" not in done.stdout

    ended = lab.run("--script", str(script), "--requirements", "--job", "first")
    assert ended.code == 0, ended.error
    assert "Install packages" not in (lab.runs_dir / "first/ansible.log").read_text()
    environment = packages_of(lab, "first")
    assert "trainpack" in (lab.runs_dir / "first/packages/pylock.toml").read_text()
    marker = environment / "tensorflow-venv.json"
    made_at = marker.stat().st_mtime_ns

    done = lab.playbook(
        "train.yml",
        train_job_script=str(script),
        train_job_requirements="auto",
        train_job_id="second",
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert packages_of(lab, "second") == environment
    assert marker.stat().st_mtime_ns == made_at
    again = lab.run("--script", str(script), "--job", "third")  # as before: nothing is installed
    assert again.code == 1

    for job, stays in (("first", True), ("second", False)):
        for path in (lab.root / "jobs" / job).rglob("*"):
            os.utime(path, (time.time() - 7200,) * 2, follow_symlinks=False)
        state = lab.root / "jobs" / job
        for path in state.glob("*/state.json"):
            old = json.loads(path.read_text())
            path.write_text(json.dumps({**old, "ended_at": time.time() - 7200}))
            os.utime(path, (time.time() - 7200,) * 2)
        cleaned = run_command(
            sys.executable, "-m", "train", *lab.words("clean", "--older-than", "1h")
        )
        assert cleaned.returncode == 0, cleaned.stderr
        assert not state.exists()
        assert environment.exists() is stays


@pytest.mark.soak
def test_without_a_framework_only_the_requested_packages_are_installed(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab = local_lab()
    lab.doubtful = True
    root = tmp_path / "environments"
    lab.variables |= {
        "train_job_framework": "torch",
        "train_job_python": f"{root}/venv-bare/bin/python",
        "tensorflow_root": str(root),
    }
    script = make_script(tmp_path, "trainpack")
    run = ("--script", str(script), "--requirements", "--job")
    command = Command(*lab.words("run", *run, "early"))
    out, err = command.process.communicate(timeout=300)
    assert command.process.returncode == 2
    assert "-e train_job_framework=torch" in out + err
    assert "--tags tensorflow` to create it, or set train_job_python" in out + err

    done = lab.playbook("setup.yml", setup_roles=["tensorflow"])
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Install the base environment: changed on worker0" in done.stdout
    ended = lab.run(*run, "night")
    assert ended.code == 0, ended.error
    assert "trainpack" in (lab.runs_dir / "night/logs/worker-0.log").read_text()
    installed = {path.name for path in root.glob("packages-*/lib/python3*/site-packages/*")}
    assert installed - {"__pycache__"} == {
        *("trainpack", "trainpack-1.0.dist-info", "tensorflow.pth")
    }


@pytest.mark.soak
def test_an_installation_that_is_killed_is_made_again(lab: Lab, script: Path) -> None:
    started = lab.start("--script", str(script), "--requirements", "--job", "killed")
    venvs = Path(lab.variables["train_job_python"]).parents[2] / "venvs"
    before = set(venvs.glob("extra-*"))
    deadline = time.monotonic() + 120
    while not set(venvs.glob("extra-*")) - before:
        assert started.process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started.process.send_signal(signal.SIGKILL)
    started.process.wait()
    # Settings of TensorFlow's own environment do not apply to that of the packages.
    given = {"tensorflow_environment": "mine", "tensorflow_wheelhouse": "/nowhere"}
    ended = lab.run("--script", str(script), "--requirements", "--job", "next", **given)
    assert ended.code == 0, ended.error
    log = (lab.runs_dir / "next/logs/worker-0.log").read_text()
    assert "trainpack" in log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("numpy==1.23.5", "requires numpy==1.23.5, but the environment of TensorFlow"),
        ("nowhere-to-be-found", "was not found"),
        ("./x.whl", "is a path on this control node"),
    ],
)
def test_nothing_starts_with_requirements_that_cannot_be(
    lab: Lab, script: Path, text: str, message: str
) -> None:
    with (script / "requirements.txt").open("a") as file:
        file.write(text + "\n")
    command = Command(*lab.words("run", "--script", str(script), "--requirements", "--job", "no"))
    out, err = command.process.communicate(timeout=300)
    assert command.process.returncode == 2
    assert message in out + err
    assert (out + err).count(message) == 1
    assert not (lab.root / "jobs").exists()
