"""The wheel: built, installed into an empty environment, and used from an empty folder."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.jobs import PLAIN
from tests.support.lab import REPOSITORY, once, run, write_local_inventory

BIN = Path(sys.executable).parent
COLLECTION = "ansible_collections/tensorflow_ansible/cluster"
#: Programs of the environment's Ansible.
PROGRAMS = ("ansible-playbook", "ansible-inventory")


def uv(*words: str, folder: Path) -> None:
    done = run(str(BIN / "uv"), *words, cwd=folder, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def wheel(shared: Path) -> Path:
    """Return the wheel of this repository."""

    def build() -> str:
        folder = shared / "wheel"
        words = ["--wheel", "--offline", "--no-build-isolation", "--python", sys.executable]
        uv("build", *words, "--out-dir", str(folder), str(REPOSITORY), folder=shared)
        (made,) = folder.glob("*.whl")
        return str(made)

    return Path(once(shared, "wheel-path", build))


@dataclass
class Installed:
    """An environment with the wheel, in which this environment's packages are also found."""

    folder: Path

    @property
    def packages(self) -> Path:
        """The site-packages of the environment."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def train(
        self, folder: Path, *words: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``train`` in a folder, as a user whose PATH has a link to it."""
        return self.shell(folder, shlex.join(["train", *words]), **variables)

    def shell(self, folder: Path, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a line of a shell in a folder."""
        foreign = ("ANSIBLE_", "PYTHON", "TRAIN_", "VIRTUAL_ENV")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        path = f"{self.folder}-links:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        env = {**kept, "PATH": path, "PWD": str(folder), **variables}
        return run("sh", "-c", line, cwd=folder, env=env)

    def files(self) -> dict[str, int]:
        """Return the files of the package and the collection, with their times."""
        found = [*self.packages.glob("train/**/*"), *(self.packages / COLLECTION).rglob("*")]
        return {
            str(path): path.stat().st_mtime_ns
            for path in found
            if path.is_file() and "__pycache__" not in path.parts
        }


@pytest.fixture(scope="module")
def installed(wheel: Path, shared: Path) -> Installed:
    def install() -> str:
        made = Installed(shared / "installed")
        python = str(made.folder / "bin/python")
        uv("venv", "--offline", "--python", sys.executable, str(made.folder), folder=shared)
        words = ["--offline", "--no-deps", "--python", python, str(wheel)]
        uv("pip", "install", *words, folder=shared)
        # Installing the dependencies would take a minute.
        (made.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for name in PROGRAMS:
            code = re.sub(r"\A#!.*", f"#!{python}", (BIN / name).read_text())
            (made.folder / "bin" / name).write_text(code)
            (made.folder / "bin" / name).chmod(0o755)
        links = Path(f"{made.folder}-links")
        links.mkdir()
        (links / "train").symlink_to(made.folder / "bin/train")
        return str(made.folder)

    return Installed(Path(once(shared, "installed-path", install)))


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_the_wheel_has_what_is_used_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if ".dist-info/" not in name]
        info = next(name for name in packed.namelist() if name.endswith("/RECORD"))
        recorded = {row[0] for row in csv.reader(io.StringIO(packed.read(info).decode()))}
    needed = {"train/worker.py", "train/host/supervisor.py", "train/cli/report.html.j2"}
    needed |= {f"train/cli/{name}" for name in ("page.css", "charts.js")}
    needed |= {f"train/cli/dashboard/{n}" for n in ("static/dashboard.js", "templates/job.html.j2")}
    needed |= {f"{COLLECTION}/{name}" for name in ("ansible.cfg", "requirements/control.txt")}
    needed |= {f"{COLLECTION}/playbooks/{name}.yml" for name in ("setup", "train", "teardown")}
    needed |= {f"{COLLECTION}/roles/train_job/templates/tf_config.json.j2"}
    needed |= {f"{COLLECTION}/plugins/action/gang_plan.py", f"{COLLECTION}/meta/runtime.yml"}
    assert needed <= set(names)
    assert set(names) <= recorded
    assert {name.split("/")[0] for name in names} == {"train", "ansible_collections"}
    assert {name.split("/")[3] for name in names if not name.startswith("train/")} == {
        *("LICENSE", "README.md", "ansible.cfg", "galaxy.yml", "requirements.yml"),
        *("examples", "inventory", "meta", "playbooks", "plugins", "requirements", "roles"),
    }
    unwanted = re.compile(r"(^|/)(tests|bench|molecule|runs|collections|__pycache__)/|\.pyc$")
    assert [name for name in names if unwanted.search(name)] == []
    if (REPOSITORY / ".git").exists():
        listed = set(run("git", "ls-files", "--cached", "--others").stdout.splitlines())
        assert {name.removeprefix(f"{COLLECTION}/") for name in names} <= listed


def test_two_ranks_train_from_an_empty_folder(
    installed: Installed, empty: Path, tmp_path: Path, tf_python: str
) -> None:
    before = installed.files()
    inventory = str(write_local_inventory(tmp_path / "inventory", {"worker": 2}))
    given = {"train_job_root": str(tmp_path / "train"), "train_job_python": tf_python}
    words = ["-i", inventory, "-e", json.dumps(given)]
    script = ["--script", str(REPOSITORY / "examples/mnist-fit")]
    arguments = ["--", "--epochs", "1", "--steps-per-epoch", "10"]
    done = installed.train(empty, "run", "--job", "digits", *words, *script, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((empty / "runs/digits/result.json").read_text())
    assert result["state"] == "completed"
    assert [rank["phase"] for rank in result["ranks"]] == ["completed"] * 2
    assert list((empty / "runs/digits").rglob("mnist.keras"))

    status = installed.train(empty, "status", "digits")
    assert status.returncode == 0, status.stderr
    assert status.stdout.count("completed") == 2
    report = installed.train(empty, "report")
    assert report.stdout == f"{empty}/runs/digits/report.html\n"
    # Nothing was written into site-packages.
    assert installed.files() == before
    assert [path.name for path in empty.iterdir()] == ["runs"]


def test_help_and_errors_name_the_command(installed: Installed, empty: Path) -> None:
    shown = installed.train(empty, "--help")
    assert shown.stdout.startswith("usage: train [options] COMMAND")
    module = installed.shell(empty, f"{installed.folder}/bin/python -m train --help")
    assert module.stdout == shown.stdout.replace("train [", "python -m train [")
    missing = installed.train(empty, "stop")
    assert missing.returncode == 2
    assert "; `train list` shows all jobs" in missing.stderr
    assert missing.stderr.startswith("train stop: ")
    program = installed.train(empty, "run", "--", "--help")
    assert "usage: worker.py" in program.stdout, program.stderr


@pytest.mark.soak
def test_setup_and_other_playbooks(installed: Installed, empty: Path, tmp_path: Path) -> None:
    inventory = str(write_local_inventory(tmp_path / "inventory", {"worker": 1}))
    unknown = installed.train(empty, "playbook", "stup", "-i", inventory)
    assert unknown.returncode == 2
    assert "no playbook stup: choose one of " in unknown.stderr
    assert "setup, " in unknown.stderr

    # The suggested command is the one that installs TensorFlow.
    given = {"train_job_python": "/nowhere/python", "train_job_script": str(PLAIN)}
    words = ["-i", inventory, "-e", json.dumps(given)]
    failed = installed.train(empty, "run", *words)
    assert failed.returncode == 2
    (suggested,) = re.findall(r"`(train playbook setup [^`]+)`", failed.stdout + failed.stderr)
    tasks = installed.shell(empty, f"{suggested} --list-tasks --list-hosts")
    assert tasks.returncode == 0, tasks.stdout + tasks.stderr
    assert "worker0" in tasks.stdout
    assert "tensorflow : Install" in tasks.stdout

    checked = installed.train(empty, "playbook", "setup", "--check", TRAIN_INVENTORY=inventory)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "worker0 : ok=" in checked.stdout
    assert [path.name for path in empty.iterdir()] == ["runs"]  # written by the job


@pytest.mark.soak
def test_the_collection_of_the_environment_runs_by_its_name(
    installed: Installed, empty: Path, tmp_path: Path
) -> None:
    """``train`` does not use a copy of another version in the user's folder."""
    stale = tmp_path / "home/.ansible/collections/ansible_collections/tensorflow_ansible/cluster"
    (stale / "roles/train_job/tasks").mkdir(parents=True)
    inventory = str(write_local_inventory(tmp_path / "inventory", {"worker": 1}))
    given = {"train_job_root": str(tmp_path / "train"), "train_job_script": str(PLAIN)}
    given |= {"train_job_python": sys.executable, "train_job_id": "named"}
    words = shlex.join(["-i", inventory, "-e", json.dumps(given)])
    home = {"HOME": str(tmp_path / "home")}
    done = installed.shell(empty, f"train playbook train {words}", **home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((empty / "runs/named/result.json").read_text())["state"] == "completed"
    program = shlex.quote(str(installed.folder / "bin/ansible-playbook"))
    listed = installed.shell(empty, f"{program} tensorflow_ansible.cluster.list {words}")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert "named" in listed.stdout
