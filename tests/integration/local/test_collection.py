"""The repository as an Ansible collection: built, installed and used without a clone."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.jobs import PLAIN
from tests.support.lab import REPOSITORY, once, run, write_local_inventory

BIN = Path(sys.executable).parent
NAME = "tensorflow_ansible.cluster"


def environment(collections: Path) -> dict[str, str]:
    """Return an environment without settings of this repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return {**kept, "ANSIBLE_COLLECTIONS_PATH": str(collections), "PATH": f"{BIN}:{kept['PATH']}"}


def galaxy(folder: Path, *words: str) -> str:
    program = str(BIN / "ansible-galaxy")
    command = [program, "collection", *words]
    done = run(*command, cwd=folder, env=environment(folder), stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def archive(shared: Path) -> Path:
    """Return the archive of the collection."""

    def build() -> str:
        folder = shared / "archive"
        folder.mkdir()
        galaxy(shared, "build", str(REPOSITORY), "--output-path", str(folder))
        (made,) = folder.glob("*.tar.gz")
        return str(made)

    return Path(once(shared, "collection-archive", build))


@pytest.fixture(scope="module")
def installed(archive: Path, shared: Path) -> Path:
    """Return a folder with the installed collection and nothing else."""

    def install() -> str:
        folder = shared / "collections"
        folder.mkdir()
        words = ["--offline", "--no-deps", "-p", str(folder), str(archive)]
        galaxy(folder, "install", *words)
        return str(folder)

    return Path(once(shared, "collection-installed", install))


def play(
    collections: Path, folder: Path, playbook: str, *words: str
) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "ansible-playbook"), playbook, *words]
    env = {**environment(collections), "PWD": str(folder)}
    return run(*command, cwd=folder, env=env, stderr=subprocess.STDOUT, timeout=300)


def test_the_archive_has_what_is_used_and_nothing_else(archive: Path) -> None:
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert {"plugins/action/gang_plan.py", "roles/train_job/tasks/main.yml"} <= set(names)
    assert {"playbooks/train.yml", "train/host/supervisor.py", "meta/runtime.yml"} <= set(names)
    unwanted = [
        name
        for name in names
        if name.startswith((".", "runs", "tests", "playbooks/collections")) or name.endswith(".pyc")
    ]
    assert unwanted == []


def test_a_job_from_an_empty_folder(installed: Path, tmp_path: Path, tf_python: str) -> None:
    inventory = write_local_inventory(tmp_path / "inventory", {"worker": 2})
    empty = tmp_path / "empty"
    empty.mkdir()
    words = ["-i", str(inventory)]
    own = {"train_job_root": str(tmp_path / "train"), "train_job_lease_dir": str(tmp_path / "l")}
    given = [*words, "-e", json.dumps({**own, "train_job_python": tf_python})]

    checked = play(installed, empty, f"{NAME}.setup", *given, "--check")
    assert checked.returncode == 0, checked.stdout[-3000:]

    missing = play(installed, empty, f"{NAME}.logs", *given, "-e", "train_job_id=nowhere")
    assert missing.returncode == 2
    (suggested,) = re.findall(r"`(ansible-playbook .*?)` shows", " ".join(missing.stdout.split()))[
        :1
    ]
    listed = play(installed, empty, *shlex.split(suggested)[1:])
    assert listed.returncode == 0, listed.stdout[-3000:]

    trained = play(installed, empty, f"{NAME}.train", *given, "-e", "train_job_id=digits")
    assert trained.returncode == 0, trained.stdout[-3000:]
    result = json.loads((empty / "runs/digits/result.json").read_text())
    assert result["state"] == "completed"
    assert {rank["task"] for rank in result["ranks"]} == {"worker-0", "worker-1"}
    # Nothing was written into the collection.
    assert not list(installed.rglob("runs"))


def test_a_foreign_playbook_lists_the_role_by_its_full_name(
    installed: Path, tmp_path: Path
) -> None:
    inventory = write_local_inventory(tmp_path / "inventory", {"worker": 2})
    role = {
        "role": f"{NAME}.train_job",
        "train_job_groups": {"worker": "{{ groups.worker }}"},
        "train_job_script": str(PLAIN),
        "train_job_root": str(tmp_path / "train"),
        "train_job_runs_dir": str(tmp_path / "runs"),
        "train_job_lease_dir": str(tmp_path / "leases"),
        "train_job_python": sys.executable,
        "train_job_id": "foreign",
    }
    own = tmp_path / "own.yml"
    own.write_text(json.dumps([{"hosts": "worker", "gather_facts": False, "roles": [role]}]))
    done = play(installed, tmp_path, str(own), "-i", str(inventory))
    assert done.returncode == 0, done.stdout[-3000:]
    result = json.loads((tmp_path / "runs/foreign/result.json").read_text())
    assert result["state"] == "completed"


def test_it_is_installed_from_a_git_url(tmp_path: Path) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is not a clone")
    galaxy(tmp_path, "install", "--no-deps", "-p", str(tmp_path), f"git+file://{REPOSITORY}")
    folder = tmp_path / "ansible_collections/tensorflow_ansible/cluster"
    assert (folder / "playbooks/train.yml").exists()
    assert (folder / "MANIFEST.json").exists()


#: Tests of ``ansible-test sanity`` that run offline. The others install packages from PyPI:
#: ansible-doc, import, pep8, pslint, pylint, runtime-metadata, shellcheck, validate-modules and
#: yamllint.
SANITY = [
    *("action-plugin-docs", "changelog", "compile", "empty-init", "ignores", "line-endings"),
    *("no-assert", "no-get-exception", "no-illegal-filenames", "no-smart-quotes"),
    *("replace-urlopen", "shebang", "symlinks", "use-argspec-type-path", "use-compat-six"),
]


def test_sanity(installed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "ansible_collections/tensorflow_ansible/cluster"
    shutil.copytree(installed / "ansible_collections/tensorflow_ansible/cluster", copy)
    program = str(BIN / "ansible-test")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    chosen = [word for name in SANITY for word in ("--test", name)]
    command = [program, "sanity", "--python", version, *chosen]
    done = run(*command, cwd=copy, env=environment(tmp_path), stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Running sanity test") == len(SANITY)


def test_every_action_is_documented(installed: Path) -> None:
    actions = sorted(path.stem for path in (REPOSITORY / "plugins/action").glob("*.py"))
    assert len(actions) > 30
    words = ["--json", *(f"{NAME}.{action}" for action in actions)]
    done = run(str(BIN / "ansible-doc"), *words, cwd=installed, env=environment(installed))
    documented = json.loads(done.stdout)
    assert sorted(documented) == [f"{NAME}.{action}" for action in actions]
    for about in documented.values():
        assert about["doc"]["short_description"]
        assert about["doc"]["attributes"]["check_mode"]["support"] in ("full", "none")
        assert about["examples"]
        assert about["return"] is not None
