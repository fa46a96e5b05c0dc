"""Old environments of the role ``tensorflow`` go after a switch, and the rest on request."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tensorflow_role import (
    Call,
    cleanup,
    environments,
    make_lock,
    make_wheel,
    shown_version,
    with_extra,
    with_lock,
)

pytest_plugins = ("tests.tensorflow_role",)


class Versions:
    """Installs one version after the other."""

    def __init__(self, params: dict[str, Any], call: Call, folder: Path) -> None:
        self.params, self.call, self.folder = params, call, folder
        self.root = Path(params["root"])

    def lock(self, version: str) -> dict[str, Any]:
        wheel = make_wheel(self.folder / "wheels", version)
        lock = self.folder / f"{version}.txt"
        return with_lock(self.params, lock if lock.exists() else make_lock(lock, wheel))

    def install(self, *versions: str, check_mode: bool = False, **more: Any) -> dict[str, Any]:
        for version in versions:
            result = self.call({**self.lock(version), **more}, check_mode=check_mode)
            assert not result.get("failed"), result
            time.sleep(0.02)  # the markers' times differ
        return result

    def remove(self, check_mode: bool = False) -> dict[str, Any]:
        return self.call({"root": str(self.root), "state": "absent"}, check_mode=check_mode)

    @property
    def there(self) -> list[str]:
        return [name.split("-")[1] for name in environments(self.params["root"])]


@pytest.fixture
def versions(
    params: dict[str, Any],
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without_pip: None,
) -> Versions:
    # Whatever the tests' own folder lies on.
    monkeypatch.setattr(cleanup, "shared_with", lambda _: "")
    return Versions(params, call, tmp_path)


def test_the_one_in_use_and_the_one_before_stay(versions: Versions) -> None:
    first = versions.install("1.0")
    assert versions.install("2.0")["removed"] == []
    checked = versions.install("3.0", check_mode=True)
    assert versions.there == ["1.0", "2.0"]
    third = versions.install("3.0")
    assert third["removed"] == checked["removed"] == [Path(first["venv"]).name]
    assert versions.there == ["2.0", "3.0"]
    assert versions.install("3.0")["removed"] == []
    # The one before is the one that was linked last.
    versions.install("2.0", "4.0")
    assert versions.there == ["2.0", "4.0"]
    versions.install("5.0", "6.0", keep=0)
    assert versions.there == ["2.0", "4.0", "5.0", "6.0"]
    # Unfinished ones go, and only the role's own.
    (versions.root / "venvs" / "tensorflow-0.9-cpu-py3.11-0123456789ab").mkdir()
    (versions.root / "venvs" / "my-own").mkdir()
    versions.install("7.0", keep=1)
    assert versions.there == ["own", "7.0"]


def test_what_another_link_needs_stays(versions: Versions, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "1.5", name="frobnicate")
    extra = make_lock(tmp_path / "extra.txt", wheel)
    result = versions.call(with_extra(versions.lock("1.0"), extra))
    assert result["changed"], result
    versions.install("2.0", environment="paper")
    versions.install("3.0", "4.0", "5.0")
    assert {"1.0", "2.0", "4.0", "5.0"} == set(versions.there) - {Path(result["venv"]).name[6:]}
    assert shown_version(versions.root / "script") == "1.0"
    assert shown_version(versions.root / "paper") == "2.0"


@contextmanager
def process(*command: str, cwd: Path | None = None) -> Iterator[int]:
    """A process that waits."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=cwd, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    yield child.pid
    child.communicate()


WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.mark.parametrize("how", ["command", "loaded", "folder"])
def test_what_a_process_uses_stays(versions: Versions, tmp_path: Path, how: str) -> None:
    venv = Path(versions.install("1.0")["venv"])
    versions.install("2.0")
    # A package's compiled part: mapped by the job, as TensorFlow's is, found through the link.
    mapped = next(venv.glob("lib/python3*/site-packages")) / "part.so"
    mapped.write_bytes(b"\0" * 4096)
    script = tmp_path / "job.py"  # a command that shows nothing
    script.write_text(
        f"import mmap; f = open({str(mapped)!r}, 'rb');"
        f" m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close(); {WAIT}"
    )
    command = {
        "command": [str(venv / "bin" / "python"), "-c", WAIT],
        "loaded": [sys.executable, str(script)],
        "folder": [sys.executable, "-c", WAIT],
    }[how]
    with process(*command, cwd=venv if how == "folder" else None) as pid:
        result = versions.install("3.0")
        assert result["removed"] == []
        (note,) = result["notes"]
        assert f"{venv.name} stays: process {pid} (python" in note
    assert versions.there == ["1.0", "2.0", "3.0"]
    # The next switch removes it.
    assert venv.name in versions.install("4.0")["removed"]


def test_another_users_process_under_the_root_counts_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its map of memory is hidden, so nobody knows which environment it has loaded."""
    monkeypatch.setattr(cleanup, "PROC", str(tmp_path / "proc"))
    root, old = str(tmp_path / "root"), "tensorflow-1.0-cpu-py3.11-0123456789ab"
    hidden, read = str(tmp_path / "proc/7/maps"), cleanup._read
    monkeypatch.setattr(cleanup, "_read", lambda path: None if path == hidden else read(path))
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    for command, used in [
        ("/usr/bin/python3\0/usr/bin/service\0", {}),
        (f"{root}/venv/bin/python\0x.py", {old: "process 7 (python)"}),
    ]:
        (process / "cmdline").write_bytes(command.encode())
        assert cleanup.in_use(root, f"{root}/venvs", [old]) == used


@pytest.mark.parametrize(
    ("path", "home", "said"),
    [
        ("/home/ada/train/venvs", "nfs4", "other machines may use them (filesystem nfs4)"),
        ("/home/ada/train/venvs", "fuse.sshfs", "(filesystem fuse.sshfs)"),
        ("/home/ada/train/venvs", "xfs", ""),
        ("/homes/ada/train/venvs", "nfs4", ""),
        ("/home/a b/train/venvs", "xfs", "it is a mount of its own, which others may use"),
    ],
)
def test_folders_that_other_machines_may_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, home: str, said: str
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 1 8:1 / / rw - overlay /dev/sda1 rw\n"
        f"30 21 0:40 / /home rw shared:1 - {home} server:/home rw\n"
        "31 30 8:2 / /home/a\\040b/train/venvs rw - ext4 /dev/sdb1 rw\n"
    )
    monkeypatch.setattr(cleanup, "MOUNTS", str(table))
    found = cleanup.shared_with(path)
    assert said in found
    assert bool(said) == bool(found)


def test_a_shared_folder_and_one_that_cannot_be_removed(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = versions.install("1.0", "2.0", "1.0")
    with monkeypatch.context() as patched:
        patched.setattr(cleanup, "shared_with", lambda _: "others may use them")
        result = versions.install("3.0")
    stay = f"1 old environments in {versions.root}/venvs stay: others may use them."
    assert (result["removed"], result["notes"]) == ([], [stay])

    def fail(path: str) -> None:
        raise OSError(f"{path} is busy")

    versions.install("2.0", keep=0)
    with monkeypatch.context() as patched:
        patched.setattr(cleanup, "shutil", SimpleNamespace(rmtree=fail))
        result = versions.install("4.0")
    assert (result["removed"], "could not be removed" in result["notes"][0]) == ([], True)
    # Half removed does not pass for finished.
    assert not Path(first["venv"], "tensorflow-venv.json").exists()
    assert versions.call(versions.lock("1.0"), check_mode=True)["parts"] == ["tensorflow"]


def test_everything_goes_on_request_but_what_runs(versions: Versions) -> None:
    root = versions.root
    assert (versions.remove()["changed"], root.exists()) == (False, False)
    old = Path(versions.install("1.0", environment="paper")["venv"])
    venv = Path(versions.install("2.0")["venv"])
    for folder in ("jobs", "venvs/.sent-host", "venvs/my-own"):
        (root / folder).mkdir()
    jobs = f"{root} stays, with jobs"
    with process(str(venv / "bin" / "python"), "-c", WAIT) as pid:
        checked = versions.remove(check_mode=True)
        assert (root / "paper").is_symlink()
        result = versions.remove()
        gone = sorted([str(root / "paper"), str(old), str(root / "venvs/.sent-host")])
        assert result["removed"] == checked["removed"] == gone
        assert result["notes"] == checked["notes"]
        assert result["notes"] == [
            f"{venv} stays: process {pid} (python) uses it.",
            f"{root}/venvs stays, with my-own.",
            f"{jobs}, venv.",
        ]
        assert shown_version(root / "venv") == "2.0"
    assert str(root / "venv") in versions.remove()["removed"]
    (root / "venvs/my-own").rmdir()
    again = versions.remove()
    assert (again["changed"], again["notes"]) == (False, [f"{jobs}."])
    assert os.listdir(root) == ["jobs"]
