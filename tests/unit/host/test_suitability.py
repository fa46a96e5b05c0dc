"""The facts of a host before TensorFlow is installed there."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from train.gang import reports
from train.host import suitability
from train.host.host_facts import Suitability

SUPPORTED = ["3.10", "3.13"]


def examine(root: Path | str, python: str = sys.executable) -> dict[str, Any]:
    request = {"python": python, "supported": SUPPORTED, "root": str(root), "environment": "venv"}
    found = suitability.examine(request)
    reports.record(Suitability)(found)
    return found


def program(path: Path, answer: str) -> str:
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


def python(path: Path, **changed: Any) -> str:
    """Return a program that answers like an interpreter."""
    facts = {"version": "3.11.2", "implementation": "cpython", "bits": 64, "free_threaded": False}
    facts |= {"has_venv": True, "glibc": "glibc 2.31", **changed}
    return program(path, f"echo '{json.dumps(facts)}'")


def test_it_needs_nothing_but_an_old_python() -> None:
    source = Path(suitability.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    imported = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imported for alias in node.names}
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in imported)
    assert "annotations" not in names  # 3.7
    assert "capture_output" not in source


def test_this_machine(tmp_path: Path) -> None:
    found = examine(tmp_path / "a" / "b")
    assert found["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert found["machine"] == os.uname().machine
    assert (found["parent"], found["obstacle"]) == (str(tmp_path), "")
    assert (found["write_error"], found["is_noexec"], found["others"]) == ("", False, [])
    assert found["free_mb"] > 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    for name in ("file", "link"):
        found = examine(tmp_path / name)
        assert (found["parent"], found["obstacle"]) == (str(tmp_path), str(tmp_path / name))


def test_interpreters_that_fit_are_found_where_another_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = python(tmp_path / "python3", version="3.9.2")
    places = tmp_path / "uv" / "one" / "bin"
    places.mkdir(parents=True)
    fits = python(places / "python3.12", version="3.12.4")
    python(places / "python3.13", version="3.13.0", free_threaded=True)
    python(places / "python3.11", has_venv=False)
    program(places / "python3.10", "exit 1")
    monkeypatch.setattr(suitability, "PLACES", (str(tmp_path / "uv" / "*" / "bin"),))
    monkeypatch.setenv("PATH", "/nowhere")
    assert examine(tmp_path, old)["others"] == [{"path": fits, "version": "3.12.4"}]
    assert examine(tmp_path, fits)["others"] == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("exit 3", "is not a working Python 3"),
        ("echo '[1]'", "is not a working Python 3"),
        (None, "no such program"),
    ],
)
def test_what_is_no_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, error: str
) -> None:
    # Interpreters of this machine are not run.
    monkeypatch.setattr(suitability, "PLACES", ())
    monkeypatch.setenv("PATH", "/nowhere")
    path = tmp_path / "python3"
    if answer:
        program(path, answer)
    found = examine(tmp_path, str(path))
    assert error in found["python_error"]
    assert found["python_version"] == ""


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        ("flags\t\t: fpu avx avx2\n", True),
        ("flags\t\t: fpu sse4_2\n", False),
        ("Features\t: fp asimd\n", True),
        ("", True),
    ],
)
def test_avx(cpus: str, expected: bool) -> None:
    assert suitability.has_avx(cpus) == expected


def test_a_filesystem_mounted_with_noexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suitability, "can_map", lambda *_: False)
    assert examine(tmp_path)["is_noexec"]
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert suitability.is_noexec(str(tmp_path), "pyvenv.cfg")
    assert not suitability.is_noexec(str(tmp_path), "not-there")
