"""The packages of a script: which are missing, and what their lock needs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gang.hostile import ENVIRONMENT, FACTS
from tests.unit.gang.made_up_play import a_play
from train.gang.errors import UserError
from train.gang.plan import script_packages

NAMES = ("node-0", "node-1")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.py").write_text("import json, pandas\nfrom helpers import x\n")
    (folder / "helpers.py").write_text("import PIL.Image\ntry:\n    import torch\nfinally: ...\n")
    return folder / "main.py"


def args(script: Path, **changed: Any) -> Any:
    about: Any = {"script": str(script), "module": "", "include": [], "requirements": ""}
    about |= {"hosts": NAMES, "checks": "checks", "attempt": 1, "send_wheels": False}
    about |= {"tensorflow_requirements": "", "playbook_dir": "/nowhere"}
    return {**about, **changed}


def hosts(**changed: Any) -> Any:
    """Return a play whose hosts are fine, but for one that has changed facts."""
    facts = {"node-0": FACTS, "node-1": {**FACTS, **changed}}
    return a_play({name: {"host": {**facts[name], "machine": name}} for name in NAMES})


def test_the_modules_of_a_script_are_those_that_it_always_imports(script: Path) -> None:
    assert script_packages.script_modules(args(script)) == ["PIL", "pandas"]
    assert script_packages.script_modules(args(script.with_name("nowhere.py"))) == []


def test_modules_that_hosts_lack_are_named_with_the_way_to_add_them(script: Path) -> None:
    play = hosts(missing_modules=["PIL", "pandas"])
    play.registered("node-0", "")["host"]["missing_modules"] = []
    found = script_packages.lock_packages(play, args(script))
    assert (found["packages"], found["installs"]) == (None, {})
    assert found["warnings"] == [
        "PIL and pandas are not installed on node-1: add pillow and pandas to requirements.txt "
        "next to the script, and pass --requirements"
    ]


def test_a_requirements_file_that_lists_them_is_all_that_is_passed(script: Path) -> None:
    file = script.with_name("requirements.txt")
    file.write_text("pandas>=2\n")
    said = f"pandas is not installed on node-0 and node-1; {file} lists pandas: pass --requirements"
    assert script_packages.lock_packages(hosts(), args(script))["warnings"] == [said]


def test_packages_need_an_environment_of_setup(script: Path) -> None:
    play = hosts(environment=None, python="/opt/own/bin/python")
    with pytest.raises(UserError, match=r"^node-1: /opt/own/bin/python does not belong to an env"):
        script_packages.lock_packages(play, args(script, requirements="auto"))


def test_an_environment_of_another_lock_is_to_be_set_up_again(script: Path) -> None:
    script.with_name("requirements.txt").write_text("pandas\n")
    base = script.with_name("tensorflow.txt")
    base.write_text("tensorflow-cpu==2.21.0\n")
    given = args(script, requirements=str(script.with_name("requirements.txt")))
    given |= {"tensorflow_requirements": base.name, "playbook_dir": str(script.parent)}
    digest = hashlib.sha256(base.read_bytes()).hexdigest()
    play = hosts()
    play.registered("node-0", "")["host"]["environment"] = {**ENVIRONMENT, "lock_sha256": digest}
    with pytest.raises(UserError, match=r"^node-1: .*was installed from a different lock than /"):
        script_packages.lock_packages(play, given)


def test_the_packages_are_in_an_environment_next_to_tensorflows() -> None:
    facts: Any = {"node-0": FACTS}
    assert script_packages.with_packages(facts, None) is facts
    packages: Any = {"name": "packages-0123456789ab"}
    environments: Any = {"node-0": ENVIRONMENT}
    placed = script_packages.with_packages(facts, packages)
    assert placed["node-0"]["python"] == "/home/u/train/packages-0123456789ab/bin/python"
    assert FACTS["python"] == "/opt/tf/bin/python", "the facts stay as they were"
    assert script_packages._installs(environments, packages) == {}
    missing: Any = {"name": "packages-ffffffffffff"}
    assert script_packages._installs(environments, missing) == {
        "node-0": {"root": "/home/u/train", "framework": "tensorflow", "variant": "cpu"}
    }


def test_only_the_lock_is_kept_with_the_job(tmp_path: Path) -> None:
    lock, run_dir = tmp_path / "lock", tmp_path / "night"
    (lock / "wheels").mkdir(parents=True)
    run_dir.mkdir()
    for name in ("pylock.toml", "requirements.txt", "wheels/x-1.0-py3-none-any.whl"):
        (lock / name).write_text(name)
    packages: Any = {"lock": str(lock)}
    script_packages.keep(packages, run_dir)
    names = sorted(path.name for path in (run_dir / "packages").rglob("*"))
    assert names == ["pylock.toml", "requirements.txt"]
