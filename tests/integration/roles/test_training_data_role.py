"""The role ``training_data`` on this machine, with Ansible's own modules."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import lab
from tests.support.data_folders import PUBLISHED, content, make_source, serving, sha256
from tests.support.set_up_role import Play, Tasks, assert_refused, role_task, run_plays


def run(folder: Path, tasks: Tasks, *options: str, **given: Any) -> Play:
    play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks}
    given["ansible_python_interpreter"] = sys.executable
    given["training_data_root"] = str(folder / "host")
    words = ["-c", "local", "-e", json.dumps(given), *options]
    return run_plays(folder, "localhost,", [play], *words, HOME=f"{folder}/user").checked()


ROLE = role_task("training_data")


def test_files_are_copied_downloaded_linked_and_removed(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    archive = Path(shutil.make_archive(str(tmp_path / "a"), "gztar", tmp_path, "source"))
    digest = sha256(archive)
    with serving(tmp_path) as port:
        cifar = {"files": {"cifar-10-python.tar.gz": {"sha256": digest}}}
        given: dict[str, Any] = {
            "__training_data_published": {
                "cifar-10-python": {**PUBLISHED["cifar-10-python"], **cifar}
            },
            "training_data": [
                {"name": "folder", "src": "source"},
                {"name": "fetched", "src": f"http://127.0.0.1:{port}/a.tar.gz", "sha256": digest},
                {"name": "cifar", "src": "a.tar.gz", "dataset": "cifar-10-python", "keras": True},
                {"name": "mounted", "mounted": "/proc/sys"},
            ],
        }
        checked = run(tmp_path, [ROLE], "--check", "--diff", **given)
        assert checked.changed == 3 + 2
        assert f"+{tmp_path}/host/fetched: {digest};unpacked" in checked.shown
        assert not (tmp_path / "host").exists()

        run(tmp_path, [ROLE], **given)
    folder, names = tmp_path / "user/.keras/datasets", PUBLISHED["cifar-10-python"]["keras"]
    host, links = tmp_path / "host", [folder / name for name in names]
    for place in ("folder", "fetched/source"):
        assert content(host / place) == content(source)
    assert all(link.samefile(host / "cifar/cifar-10-python.tar.gz") for link in links)
    (source / "new").write_text("new")
    kept = (host / "folder/large").stat().st_ino
    damaged = host / "folder/sub/1 ä.bin"  # with the same size and time
    time = damaged.stat().st_mtime_ns
    damaged.write_bytes(os.urandom(900))
    os.utime(damaged, ns=(time, time))
    links[0].unlink()
    links[0].write_bytes(archive.read_bytes())  # like a download by Keras
    links[1].unlink()
    links[1].symlink_to("/nowhere")
    same = f"test $(stat -c %i host/folder/large) = {kept}"
    compare = f"{same} && diff -r source host/folder && cmp {links[0]} {links[1]}"
    given["training_data_verify"] = True
    shell = {"ansible.builtin.shell": {"cmd": compare, "chdir": str(tmp_path)}}
    run(tmp_path, [ROLE, shell, role_task("training_data", "remove")], **given)
    assert (host.exists(), links[1].is_symlink()) == (False, False)
    assert sha256(links[0]) == digest


SSH = """#!/bin/sh
for last; do :; done
exec sh -c "$last"
"""
RSYNC = """#!/bin/sh
[ "$1" = --version ] && exit
printf '%s\\n' "$@" > asked
for last; do before=$source source=$last; done
mkdir -p "${last#*:}" && cp -rL "$before." "${last#*:}"
"""


def test_rsync_takes_the_way_of_ansible_to_a_host_and_checks_its_key(tmp_path: Path) -> None:
    source, programs = make_source(tmp_path), tmp_path / "bin"
    programs.mkdir()
    for name, text in {"ssh": SSH, "rsync": RSYNC.replace("asked", f"{tmp_path}/asked")}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    given = {
        "ansible_python_interpreter": sys.executable,
        "ansible_ssh_common_args": "-o ProxyJump=train@bastion",
        "ansible_ssh_transfer_method": "piped",
        "training_data_root": str(tmp_path / "host"),
        "training_data": [{"name": "folder", "src": "source"}],
    }
    play = {"hosts": "all", "gather_facts": False, "tasks": [ROLE]}
    path = f"{programs}{os.pathsep}{lab.environment()['PATH']}"
    run_plays(tmp_path, "node-1,", [play], "-e", json.dumps(given), PATH=path).checked()
    assert content(tmp_path / "host/folder") == content(source)
    (shell,) = [word for word in (tmp_path / "asked").read_text().splitlines() if "rsh" in word]
    assert "-o ProxyJump=train@bastion" in shell
    assert "known_hosts" not in shell.lower()
    assert "StrictHostKeyChecking" not in shell


GOOD, NAMED = {"name": "good", "src": "source"}, {"name": "x", "src": "source"}
KERAS_FILE = {"name": "m", "src": "source/large", "dataset": "mnist-npz", "keras": True}
REFUSED: list[tuple[list[dict[str, Any]], str]] = [
    ([GOOD, {"src": "source"}], "missing required arguments: name"),
    ([GOOD, {**NAMED, "name": "../x"}], "a name must consist of"),
    ([GOOD, {"name": "x"}], "one of the following is required: src, mounted"),
    ([GOOD, {**NAMED, "mounted": "/mnt"}], "mutually exclusive: src|mounted"),
    (
        [GOOD, {"name": "x", "src": "https://example.org/a.tgz"}],
        "An entry with an address needs sha256",
    ),
    ([GOOD, {**NAMED, "dest": "../y"}], "below training_data_root"),
    ([GOOD, {**NAMED, "dest": "/y"}], "below training_data_root"),
    ([GOOD, {**NAMED, "sha256": "abc"}], "64 hexadecimal"),
    ([GOOD, {**NAMED, "dataset": "imagenet"}], "fashion-mnist"),
    ([GOOD, {**NAMED, "unpack": True}], "unpack must be false"),
    ([GOOD, {"name": "x", "mounted": "mnt"}], "absolute path"),
    ([GOOD, {"name": "x", "mounted": "/tmp"}], "not on a mounted filesystem. Mount the filesystem"),
    (
        [GOOD, {"name": "x", "mounted": "/nowhere"}],
        "No such file or directory. Mount the filesystem",
    ),
    ([GOOD, {**NAMED, "src": "nowhere"}], "does not exist"),
    ([GOOD, {**NAMED, "src": "source/large"}], "sha256 is required for a file"),
    ([GOOD, {**NAMED, "dest": "good/y"}], "contains another destination"),
    ([GOOD, {**NAMED, "name": "good"}], "be unique"),
    ([GOOD, {**NAMED, "keras": True}], "dataset"),
    ([GOOD, {**KERAS_FILE, "dataset": "cifar-10-binary"}], "cifar-10-python"),
    ([GOOD, {**KERAS_FILE, "unpack": True}], "keras cannot be combined with unpack"),
    ([{"name": "huge", "src": "huge", "sha256": "0" * 64}], "Not enough space for huge"),
    ([{"name": "precious", "src": "source"}], "host/precious already exists"),
    ([KERAS_FILE], "datasets/mnist.npz exists and is not the published file of m"),
]


@pytest.mark.soak
def test_what_is_refused(tmp_path: Path) -> None:
    """An invalid entry stops the role before the valid one is processed."""
    large, huge = make_source(tmp_path) / "large", tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 10**13)
    host, keras = tmp_path / "host", tmp_path / "user/.keras/datasets/mnist.npz"
    (host / "precious").mkdir(parents=True)
    keras.parent.mkdir(parents=True)
    keras.write_text("half of it")
    mnist = {**PUBLISHED["mnist-npz"], "files": {"mnist.npz": {"sha256": sha256(large)}}}
    given = {"__training_data_published": {**PUBLISHED, "mnist-npz": mnist}}
    cases = [({"training_data": entries}, words) for entries, words in REFUSED]
    assert_refused(lambda tasks: run(tmp_path, tasks, **given), "training_data", cases)
    assert sorted(os.listdir(host)) == [".training_data", "m", "precious"]
    assert keras.read_text() == "half of it"


@pytest.mark.tensorflow
def test_keras_downloads_nothing(tf_python: str, tmp_path: Path) -> None:
    """Keras finds the data through links like those of the role."""
    archive, folder = tmp_path / "cifar-10-python.tar.gz", tmp_path / ".keras/datasets"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(make_source(tmp_path) / "large", "cifar-10-batches-py/test_batch")
    folder.mkdir(parents=True)
    for link, target in PUBLISHED["cifar-10-python"]["keras"].items():
        (folder / link).symlink_to(tmp_path / target)
    fashion = PUBLISHED["fashion-mnist"]["keras"].values()
    words = {
        "mnist": ['path="mnist.npz"', PUBLISHED["mnist-npz"]["files"]["mnist.npz"]["sha256"]],
        "fashion_mnist": ['os.path.join("datasets", "fashion-mnist")', *fashion],
    }
    program = f"""
import importlib, os, shutil
for package, name, option in (
    ("keras", "cifar-10-batches-py-target", "extract"),
    ("tf_keras", "cifar-10-batches-py", "untar"),
):
    keras = importlib.import_module(package)
    os.chdir(os.path.join(os.path.dirname(keras.__file__), "src/datasets"))
    for module, words in {{"cifar10": [name], **{words}}}.items():
        assert [word for word in words if word not in open(module + ".py").read()] == []
    given = {{"origin": "http://127.0.0.1:9/a", "file_hash": {sha256(archive)!r}, option: True}}
    path = keras.utils.get_file(name, **given)
    print([name for _, _, names in os.walk(path) for name in names])
    shutil.rmtree(next(entry.path for entry in os.scandir({str(folder)!r}) if entry.is_dir()))
"""
    done = lab.run("env", f"HOME={tmp_path}", tf_python, "-c", program)
    assert done.stdout == 2 * "['test_batch']\n", done.stderr
