"""The packages that a script requires: requirements.txt and pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.gang.packages.conftest import Lab
from train.gang.errors import UserError
from train.gang.packages import requested


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("git+https://me:secret@host/x", "git+https://***@host/x has no hash"),
        ("x @ git+https://host/x@main", "has no hash"),
        ("x @ https://host/x-1-py3-none-any.whl", "has no hash"),
        ("./x.whl", "is a path on this control node"),
        ("dist/x-1.0.tar.gz", "is a path on this control node"),
        ("-e .", "would be an editable install of a folder on this control node"),
        ("--editable=../lib", "would be an editable install of a folder on this control node"),
        ("--install-option=x", "the option --install-option is not supported"),
        ("foo bar", "is not a requirement such as pandas>=2.1"),
        ("pandas=>2", "is not a requirement such as pandas>=2.1"),
        ("pip install pandas", "is not a requirement such as pandas>=2.1"),
        ("alpha \\", "ends in a backslash"),
        ("-r missing.txt", "no such file"),
        ("-r requirements.txt", "includes itself"),
        ("# nothing", "lists no packages"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_line(lab: Lab, text: str, reason: str) -> None:
    with pytest.raises(UserError, match=re.escape(reason)) as refused:
        lab.read(f"\n{text}")
    assert "secret" not in str(refused.value)


def test_all_lines_that_cannot_be_taken_are_named_at_once(lab: Lab) -> None:
    with pytest.raises(UserError) as refused:
        lab.read("alpha\n./a.whl\nb c\n")
    lines = str(refused.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "requirements.txt, line 4",
        "requirements.txt, line 5",
    ]


def test_files_that_are_named_are_read_with_their_own_places(lab: Lab) -> None:
    (lab.folder / "more.txt").write_text("beta==1 --hash=sha256:00\n\ngamma \\\n  >= 2\n")
    found = lab.read("-rmore.txt\nalpha\n")
    assert [(line.place, str(line.requirement)) for line in found.packages] == [
        ("more.txt, line 1", "beta==1"),
        ("more.txt, line 4", "gamma>=2"),
        ("requirements.txt, line 4", "alpha"),
    ]
    assert found.indexes == ("--no-index", f"--find-links {lab.index}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[project]\ndependencies = ["alpha>1", "beta"]', ""),
        ('[project]\ndynamic = ["dependencies"]', "has dynamic dependencies"),
        ("[tool.poetry]\n", "has no [project] dependencies list"),
        ("[project\n", "is not valid TOML"),
    ],
)
def test_dependencies_of_a_project(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    if message:
        with pytest.raises(UserError, match=re.escape(message)):
            requested.read(path)
    else:
        names = [line.requirement.name for line in requested.read(path).packages]
        assert names == ["alpha", "beta"]


def test_the_file_next_to_the_script(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither requirements.txt nor pyproject.toml"):
        requested.find("auto", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["alpha"]\n')
    assert requested.find("auto", tmp_path).name == "pyproject.toml"
    (tmp_path / "requirements.txt").write_text("alpha\n")
    assert requested.find("auto", tmp_path).name == "requirements.txt"
    with pytest.raises(UserError, match="no such file: /nowhere"):
        requested.find("/nowhere", tmp_path)
