"""The archive of the launcher's programs, under this and another version of Python."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from train.gang import launcher
from train.host import staging

#: Two modules: one that others import, and one that nothing imports.
MODULES = ("records", "checkup")


def repacked(folder: Path, source: str | None = None, magic: bytes | None = None) -> Path:
    """Return the archive as a file, with sources or versions of compiled modules replaced."""
    path = folder / "launcher.zip"
    sent = zipfile.ZipFile(io.BytesIO(launcher.archive()))
    with zipfile.ZipFile(path, "w") as archive:
        for name in sent.namelist():
            content = sent.read(name)
            if name.startswith("train/host/") and name.endswith(".py") and source is not None:
                content = source.encode()
            elif name.endswith(".pyc") and magic is not None:
                content = magic + content[4:]
            archive.writestr(name, content)
    return path


def imported(path: Path) -> subprocess.CompletedProcess[str]:
    """Import modules from an archive or a folder, as hosts do."""
    program = f"import sys; sys.path.insert(0, {str(path)!r})\n"
    program += "".join(f"from train.host import {name}\n" for name in MODULES)
    command = [sys.executable, "-S", "-E", "-c", program]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)


def test_the_same_version_compiles_nothing(tmp_path: Path) -> None:
    done = imported(repacked(tmp_path, source="this is not Python"))
    assert done.returncode == 0, done.stderr


def test_another_version_compiles_the_sources(tmp_path: Path) -> None:
    done = imported(repacked(tmp_path, magic=b"\x01\x02\r\n"))
    assert done.returncode == 0, done.stderr


def test_the_archive_runs_a_program_with_arguments(tmp_path: Path) -> None:
    repacked(tmp_path)
    for arguments, code, output in (
        (["train.host.updates", "{}", "0", "0"], 0, "{}\n"),
        (["train.host.supervisor", "/nowhere"], 1, '{"/nowhere": '),
        (["train.host.unknown"], 1, ""),
    ):
        done = subprocess.run(
            [sys.executable, "-S", "-E", "launcher.zip", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert done.stdout.startswith(output)
        assert bool(done.stderr) == (output == "")


def test_each_program_is_sent_with_its_source() -> None:
    names = zipfile.ZipFile(io.BytesIO(launcher.archive())).namelist()
    sources = {f"train/host/{path.name}" for path in Path(staging.__file__).parent.glob("*.py")}
    others = {"__main__.py", "train/__init__.py"}
    assert {name for name in names if name.endswith(".py")} == {*others, *sources}
    assert {name for name in names if name.endswith(".pyc")} == {f"{name}c" for name in sources}


def test_a_part_of_the_archive_runs_its_call_alone(tmp_path: Path) -> None:
    whole = launcher.archive()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    request = {"call": "usage", "root": str(tmp_path), "lease_dir": str(tmp_path)}
    for compiled_for, most in (("", 0.6), (here, 0.45)):
        part = launcher.archive_of("usage", compiled_for)
        assert len(part) < most * len(whole)
        path = tmp_path / "part.zip"
        path.write_bytes(part)
        program = f"import sys; sys.path.insert(0, {str(path)!r})\n"
        program += f"from train.host import calls; calls.main({request!r})"
        command = [sys.executable, "-S", "-E", "-c", program]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f'"compiled_for": "{here}"' in done.stdout
    names = zipfile.ZipFile(path).namelist()
    assert "train/host/usage.pyc" in names
    assert "train/host/usage.py" not in names
