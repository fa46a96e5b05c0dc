"""The control node's half of the role ``tensorflow``: pip for the hosts, and locks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.errors import AnsibleActionFail

from roles.tensorflow.control import locks
from tests.tensorflow_role import REPO, ROLE, action

pytest_plugins = ("tests.tensorflow_role",)


def test_pip_runs_from_the_archive(pip_zip: str) -> None:
    command = [sys.executable, "-I", f"{pip_zip}/pip", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert pip_zip in said


def test_pip_must_fit_the_host(tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match=r"the host has 3\.6\.9: take the pip that is"):
        action.pack_pip(str(tmp_path), "3.6.9")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keras==3.0\n", "locks no TensorFlow"),
        ("tensorflow==1\ntensorflow_cpu==1\n", "locks tensorflow and tensorflow-cpu"),
        ("tensorflow>=2\n", "locks no TensorFlow"),
    ],
)
def test_lock_without_one_tensorflow_is_refused(tmp_path: Path, text: str, said: str) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(text)
    with pytest.raises(AnsibleActionFail, match=said):
        locks.describe_lock(str(lock))


def test_one_tensorflow_in_both_variants() -> None:
    cpu, gpu = (locks.describe_lock(str(ROLE / "files" / f"{v}.txt")) for v in ("cpu", "gpu"))
    assert (cpu["variant"], gpu["variant"]) == ("cpu", "gpu")
    assert cpu["version"] == gpu["version"]
    assert cpu["imports"] == ["tensorflow", "tf_keras", "tensorboard", "sklearn"] == gpu["imports"]


LOCKS = [*sorted((ROLE / "files").glob("*.txt")), *sorted((REPO / "requirements").glob("*.txt"))]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_have_hashes_and_name_no_place(lock: Path) -> None:
    text = lock.read_text()
    requirements = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert requirements
    for line in requirements:
        assert re.match(r"[\w.-]+(\[[\w,-]+\])?==[\w.!+]+( ; .*)? \\$", line), line
    assert text.count(" \\\n    --hash=sha256:") >= len(requirements)
    assert not re.search(r"://|(?m:^\s*-)(?!-hash=sha256:)|@ |/", text)


@pytest.mark.parametrize("name", ["control", "dev"])
def test_ansible_core_by_python(name: str) -> None:
    text = (REPO / "requirements" / f"{name}.txt").read_text()
    assert re.search(r"^ansible-core==2\.19\.\d+ ; python_full_version < '3\.12' ", text, re.M)
    assert re.search(r"^ansible-core==2\.21\.\d+ ; python_full_version >= '3\.12' ", text, re.M)
