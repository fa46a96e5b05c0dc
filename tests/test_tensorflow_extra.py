"""Packages of a script on top of the environment with TensorFlow."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from roles.tensorflow.control import locks
from tests.tensorflow_role import (
    HERE,
    Call,
    environments,
    make_lock,
    make_wheel,
    shown_version,
    with_extra,
    with_lock,
)

pytest_plugins = ("tests.tensorflow_role",)


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """The lock of a package on top."""
    wheel = make_wheel(tmp_path / "wheels", "1.5", name="frobnicate")
    return make_lock(tmp_path / "extra.txt", wheel)


def test_both_are_found_and_nothing_is_there_twice(
    params: dict[str, Any], call: Call, extra: Path
) -> None:
    wanted = with_extra(params, extra)
    looked = call(wanted, check_mode=True)
    assert looked["parts"] == ["tensorflow", "extra"]
    assert not Path(params["root"]).exists()
    result = call(wanted)
    assert result["parts"] == ["tensorflow", "extra"], result
    assert result["link"] == f"{params['root']}/script"
    venv = Path(result["venv"])
    assert Path(result["link"]).resolve() == venv
    assert venv.name.startswith("extra-")
    # Through the link, as a job uses it.
    assert shown_version(result["link"]) == "1.0"
    assert shown_version(result["link"], "frobnicate") == "1.5"
    packages = venv / "lib" / f"python{HERE}" / "site-packages"
    assert sorted(path.name for path in packages.iterdir() if path.name != "__pycache__") == [
        "frobnicate-1.5.dist-info",
        "frobnicate.py",
        "tensorflow.pth",
    ]
    marker = json.loads((venv / "tensorflow-venv.json").read_text())
    (base,) = set(environments(params["root"])) - {venv.name}
    assert (marker["base"], marker["version"]) == (base, "1.0")
    assert not Path(params["root"], "venv").is_symlink()
    assert not call(wanted)["changed"]


def test_other_links_stay_as_they_are(params: dict[str, Any], call: Call, extra: Path) -> None:
    plain = call(params)
    result = call(with_extra(params, extra))
    assert result["parts"] == ["extra"]
    assert Path(plain["link"]).resolve() == Path(plain["venv"])
    found = subprocess.run(
        [f"{plain['link']}/bin/python", "-c", "import frobnicate"], capture_output=True, check=False
    )
    assert b"No module named 'frobnicate'" in found.stderr
    assert not call(params)["changed"]


def test_the_usual_link_can_have_extras_too(
    params: dict[str, Any], call: Call, extra: Path
) -> None:
    call(params)
    result = call(with_extra(params, extra, "venv"))
    assert shown_version(result["link"], "frobnicate") == "1.5"
    back = call(params)
    assert back["changed"]
    assert not back["installed"]
    assert Path(back["link"]).resolve() == Path(back["venv"])


def test_a_new_lock_below_makes_a_new_one_on_top(
    params: dict[str, Any], call: Call, extra: Path, tmp_path: Path
) -> None:
    first = call(with_extra(params, extra))
    lock = make_lock(tmp_path / "lock2.txt", make_wheel(tmp_path / "wheels", "2.0"))
    second = call(with_extra(with_lock(params, lock), extra))
    assert second["parts"] == ["tensorflow", "extra"]
    assert second["venv"] != first["venv"]
    assert shown_version(second["link"]) == "2.0"
    assert shown_version(first["venv"]) == "1.0"


def test_a_package_of_both_is_not_installed_twice(
    params: dict[str, Any], call: Call, extra: Path, tmp_path: Path
) -> None:
    shared = make_wheel(tmp_path / "wheels", "3.1", name="shared")
    tensorflow = tmp_path / "wheels" / "tensorflow_cpu-1.0-py3-none-any.whl"
    lower = make_lock(tmp_path / "both.txt", tensorflow, shared)
    upper = make_lock(
        tmp_path / "upper.txt", tmp_path / "wheels" / "frobnicate-1.5-py3-none-any.whl", shared
    )
    result = call(with_extra(with_lock(params, lower), upper))
    assert shown_version(result["link"], "shared") == "3.1"
    assert not list(Path(result["venv"]).rglob("shared*"))


@pytest.mark.parametrize("damage", ["shadows TensorFlow", "wrong hash"])
def test_what_fails_on_top_leaves_the_rest_alone(
    params: dict[str, Any], call: Call, extra: Path, tmp_path: Path, damage: str
) -> None:
    before = call(with_extra(params, extra))
    wheel = make_wheel(
        tmp_path / "wheels", "1.0", "raise ImportError('mine')", "frob", package="tensorflow"
    )
    lock = make_lock(tmp_path / "bad.txt", wheel)
    if damage == "wrong hash":
        make_wheel(tmp_path / "wheels", "1.0", "more = 1", "frob")
    result = call(with_extra(params, lock))
    assert result["failed"]
    said = "cannot import tensorflow" if damage != "wrong hash" else "has another file than the one"
    assert said in result["msg"]
    assert str(lock) in result["msg"]
    assert Path(before["link"]).resolve() == Path(before["venv"])
    assert len(environments(params["root"])) == 2


@pytest.mark.parametrize("name", ["jobs", "venvs", "wheels", "a/b", "..", "-x", ""])
def test_names_that_will_not_do(params: dict[str, Any], call: Call, name: str) -> None:
    result = call({**params, "environment": name})
    assert result["failed"]
    assert f"tensorflow_environment is {name!r}: take a name" in result["msg"]
    assert not Path(params["root"]).exists()


# On the control node


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("six==1.17.0\n", r"has no hash for six \(line 1\)\. Write"),
        ("# from a tool\nsix>=1\n", "line 2 locks no version: six>=1"),
        ("six==1.*\n", r"line 1 locks no version: six==1\.\*"),
        ("-r other.txt\n", "line 1 is no NAME==VERSION: -r other.txt"),
        ("six @ https://example.org/six.whl\n", "line 1 locks no version"),
        ("# nothing\n", "names no package"),
    ],
)
def test_a_file_without_hashes_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "extra.txt"
    path.write_text(text)
    with pytest.raises(AnsibleActionFail, match=said) as refused:
        locks.describe_extra(str(path))
    assert f"`uv pip compile --generate-hashes extra.in -o {path}`" in str(refused.value)
    assert f"`pip-compile --generate-hashes extra.in -o {path}`" in str(refused.value)


HASH = " \\\n    --hash=sha256:" + 64 * "0" + "\n"


def refusal(tmp_path: Path, below: str, above: str, python: str = "3.11.2") -> str:
    lower, upper = tmp_path / "lower.txt", tmp_path / "upper.txt"
    lower.write_text(below)
    upper.write_text(above)
    lock, extra = locks.describe_lock(str(lower)), locks.describe_extra(str(upper))
    try:
        locks.refuse_conflicts(lock, extra, python)
    except AnsibleActionFail as error:
        return str(error)
    return ""


LOWER = (
    f"tensorflow-cpu==2.21.0{HASH}numpy==2.4.6 ; python_full_version < '3.12'{HASH}"
    f"numpy==2.5.0 ; python_full_version >= '3.12'{HASH}Typing_Extensions==4.16.0{HASH}"
)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    upper = f"numpy==2.5.0{HASH}typing-extensions==4.15.0{HASH}six==1.17.0{HASH}"
    said = refusal(tmp_path, LOWER, upper)
    assert "numpy 2.5.0 (there: 2.4.6), typing-extensions 4.15.0 (there: 4.16.0). Lock" in said
    assert f"`uv pip compile --generate-hashes -c {tmp_path}/lower.txt extra.in" in said
    assert said.endswith("Nothing was changed.")
    on_312 = refusal(tmp_path, LOWER, upper, "3.12.1")
    assert "numpy" not in on_312
    assert "typing-extensions 4.15.0" in on_312


def test_a_second_tensorflow_is_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, LOWER, f"tensorflow==2.21.0{HASH}")
    assert "would bring tensorflow beside the TensorFlow 2.21.0 that is there" in said
    assert "`echo tensorflow | uv pip compile --generate-hashes" in said
    assert "--excludes /dev/stdin" in said


def test_the_same_versions_and_other_platforms_are_none(tmp_path: Path) -> None:
    upper = (
        f"numpy==2.4.6{HASH}tensorflow-cpu==2.21.0{HASH}six==1{HASH}"
        f"typing-extensions==1 ; sys_platform == 'win32'{HASH}"
    )
    assert refusal(tmp_path, LOWER, upper) == ""
