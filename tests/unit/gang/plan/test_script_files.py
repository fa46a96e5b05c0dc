"""The files of a script: how they are found, checked, packed, and rejected."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from train.gang.errors import UserError
from train.gang.plan import script_files


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_script_is_found_and_staged_with_its_neighbors(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    for name in ("main.py", "other.py", "package/part.py", "data/big.bin", "notes.log", ".git/x"):
        write(folder / name, name)
    write(folder / ".trainignore", "# not needed there\ndata/\n*.log\n")
    assert script_files.find_script(str(folder)) == (folder, "main.py", "")
    assert script_files.find_script(str(folder / "other.py")) == (folder, "other.py", "")
    archive = tmp_path / "code.tar.gz"
    digest = script_files.pack(script_files.code_files(folder, exclude=["other.*"]), archive)
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert names == ["code/.trainignore", "code/main.py", "code/package/part.py"]
    (folder / "main.py").write_text("changed")
    assert (
        script_files.pack(script_files.code_files(folder, exclude=["other.*"]), archive) != digest
    )


def test_the_last_matching_line_of_an_ignore_file_counts(tmp_path: Path) -> None:
    for name in ("main.py", "data/a.csv", "data/b.csv", "data/deep/c.csv", ".git/x", "left.bin"):
        write(tmp_path / name)
    write(tmp_path / ".trainignore", "data/*\n!data/b.csv\n!.git\n!left.bin\n")
    names = [name for _, name in script_files.staged_files(tmp_path, ["left.*"])]
    assert names == [".trainignore", "main.py", "data/b.csv"]
    write(tmp_path / ".trainignore", "!data/b.csv\ndata/*\n")
    names = [name for _, name in script_files.staged_files(tmp_path, [])]
    assert names == [".trainignore", "left.bin", "main.py"]


def test_links_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = tmp_path / "project", tmp_path / "other"
    write(other / "library/part.py", "part")
    write(folder / "main.py")
    (folder / "library").symlink_to(other / "library")
    (folder / "library/again").symlink_to(folder)
    (folder / "library/self").symlink_to(".")
    (folder / "lost").symlink_to("nowhere")
    code = script_files.code_files(folder)
    assert [name for _, name in code] == ["main.py", "library/part.py"]
    monkeypatch.setenv("HOME", str(other))
    (folder / "home").symlink_to(other)
    with pytest.raises(UserError, match=rf"{folder}/home is a link to {other}, .*\.trainignore"):
        script_files.code_files(folder)
    write(folder / ".trainignore", "home/\n")
    assert len(script_files.code_files(folder)) == 3
    (other / "library/big.bin").write_bytes(b"0" * 2**21)
    linked = rf"library \(2 MiB, a link to {other}/library\)"
    with pytest.raises(UserError, match=linked):
        script_files.code_files(folder, limit_mb=1)


def test_a_folder_that_cannot_be_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("main.py", "database/table", "package/part.py"):
        write(tmp_path / name)

    def iterdir(path: Path) -> Any:
        if path.name == "database":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert [name for _, name in script_files.code_files(tmp_path)] == ["main.py", "package/part.py"]


def test_the_hash_is_that_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log in the folder may grow during the packing, and a name may be in Latin-1."""
    log = write(tmp_path / "project/train.log", "1\n")
    write(Path(os.fsdecode(bytes(log.parent) + b"/caf\xe9.txt")), "menu")
    archive = tmp_path / "code.tar.gz"

    def grow(*given: Any) -> None:
        add(*given)
        with log.open("a") as file:
            file.write("1\n")

    add = tarfile.TarFile.addfile
    monkeypatch.setattr(tarfile.TarFile, "addfile", grow)
    for _ in range(3):
        found = script_files.pack(script_files.code_files(log.parent), archive)
        script_files.check_archive(archive, found)
    assert log.read_text() == "1\n" * 7


def test_the_projects_own_program_finds_its_modules_on_a_host(tmp_path: Path) -> None:
    files = script_files.code_files(script_files.WORKER.parent)
    for path, name in files:
        write(tmp_path / name, path.read_text(encoding="utf-8") if name.endswith(".py") else "")
    staged = {name for _, name in files}
    assert "host/supervisor.py" not in staged
    for name in sorted(staged):
        for module in re.findall(r"^from (host[\w.]*) import", (tmp_path / name).read_text(), re.M):
            assert {f"{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py")} & staged
    words = [sys.executable, "-E", "-S", "worker.py", "--check"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_module_is_run_in_the_folder_of_its_package(tmp_path: Path) -> None:
    for name in ("trainer/task.py", "trainer/__main__.py", "trainer/deep/job.py"):
        write(tmp_path / name)
    for module, entry in {
        "trainer.task": "trainer/task.py",
        "trainer": "trainer/__main__.py",
        "trainer.deep.job": "trainer/deep/job.py",
    }.items():
        script = script_files.find_script(str(tmp_path), module)
        assert (script.folder, script.entry) == (tmp_path, entry)
        assert script.words == ["-m", module]
    for folder, module, refusal in (
        (tmp_path, "trainer.deep", r"neither trainer/deep\.py nor trainer/deep/__main__\.py"),
        (tmp_path, "trainer/task.py", "is not a module name"),
        (tmp_path, "trainer..task", "is not a module name"),
        (tmp_path / "trainer/task.py", "trainer.task", "is not a directory"),
    ):
        with pytest.raises(UserError, match=refusal):
            script_files.find_script(str(folder), module)


def test_scripts_that_cannot_be_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    with pytest.raises(UserError, match=r"contains 0 Python files but no main\.py"):
        script_files.find_script(str(folder))
    for name in ("a.py", "b.py"):
        write(folder / name)
    with pytest.raises(UserError, match=r"2 Python files but no main\.py"):
        script_files.find_script(str(folder))
    monkeypatch.setenv("HOME", str(folder))
    with pytest.raises(UserError, match="move the script to its own directory"):
        script_files.find_script(str(folder / "a.py"))
    (folder / "big.bin").write_bytes(b"0" * 2**21)
    with pytest.raises(UserError, match=r"is 2 MiB; the limit is 1 MiB .*big.bin"):
        script_files.code_files(folder, limit_mb=1)


def test_files_are_included_beside_the_script(tmp_path: Path) -> None:
    folder, other = tmp_path / "project", tmp_path / "other"
    for name in ("project/main.py", "other/model.py", "other/data/a.csv", "other/data/b.log"):
        write(tmp_path / name, Path(name).name)
    write(other / "data/.trainignore", "*.log\n")
    (other / "linked.py").symlink_to(other / "model.py")
    names = ["model.py", "linked.py", "../other/data/"]
    include = script_files.find_includes([f"{other}/{name}" for name in names])
    assert [path.name for path in include] == ["model.py", "linked.py", "data"]
    code = script_files.code_files(folder, include)
    assert [name for _, name in code] == [
        *("main.py", "model.py", "linked.py", "data/.trainignore", "data/a.csv")
    ]
    script_files.pack(code, tmp_path / "code.tar.gz")
    with tarfile.open(tmp_path / "code.tar.gz") as tar:
        linked = tar.extractfile("code/linked.py")
        assert linked is not None
        assert linked.read() == b"model.py"


def test_files_that_cannot_be_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = tmp_path / "project", tmp_path / "other"
    for path in (folder / "main.py", other / "main.py", other / "project/x.py"):
        write(path)
    (other / "empty").mkdir()
    (other / "big.bin").write_bytes(b"0" * 2**21)
    monkeypatch.setenv("HOME", str(other))
    for names, message in [
        (
            ["/nowhere/model.py"],
            "no such file or folder: /nowhere/model.py",
        ),
        (["~"], f"{other} cannot be included as a whole"),
        (["/"], "/ cannot be included as a whole"),
        ([str(tmp_path)], f"{tmp_path} cannot be included as a whole"),
        (["~/project", str(folder)], "would both be staged as project"),
    ]:
        with pytest.raises(UserError, match=re.escape(message)):
            script_files.find_includes(names)
    for name, message in [
        ("main.py", f"main.py: the script's folder {folder} already has an entry with that name"),
        ("empty", "contains no files to copy"),
        ("big.bin", "with the included files is 2 MiB; the limit is 1 MiB"),
    ]:
        with pytest.raises(UserError, match=re.escape(message)):
            script_files.code_files(folder, script_files.find_includes(f"~/{name}"), limit_mb=1)


def test_arguments_are_checked_when_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = write(tmp_path / "train/worker.py", "import sys\nopen(sys.argv[2]).close()\n")
    model = write(tmp_path / "mine/model.py")
    monkeypatch.setattr(script_files, "WORKER", worker)
    archive = tmp_path / "code.tar.gz"
    script_files.pack(script_files.code_files(worker.parent, [model]), archive)

    def check(script: Path, argument: str) -> None:
        manifest: Any = {"script": str(script), "arguments": [argument]}
        script_files.check_arguments(manifest, archive, {"a": {}})

    check(worker, "model.py")
    with pytest.raises(UserError, match=r"No such file or directory: 'other\.py'"):
        check(worker, "other.py")
    check(tmp_path / "users.py", "other.py")
    assert not list(tmp_path.rglob("*.pyc")), "nothing is left of the check"
