"""The role ``training_data`` at work on this machine: what Ansible's own modules do in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, environment
from tests.test_training_data import content, sha256

ROLES = REPOSITORY / "roles"
PUBLISHED = json.loads((ROLES / "training_data/files/published.json").read_text())
KERAS = ("cifar-10-batches-py-target_archive", "cifar-10-batches-py.tar.gz")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "1 ä.bin").write_bytes(b"one")
    (folder / "large").write_bytes(b"large" * 1000)
    return folder


def run(folder: Path, tasks: list[dict[str, Any]], *options: str, **given: Any) -> tuple[int, str]:
    """Run tasks in a playbook of a user's own; return how many changed something."""
    given = {
        "ansible_python_interpreter": sys.executable,
        "training_data_root": str(folder / "host"),
        **given,
    }
    play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks}
    (folder / "play.yml").write_text(json.dumps([play]))
    program = str(Path(sys.executable).parent / "ansible-playbook")
    roles = {"ANSIBLE_ROLES_PATH": str(ROLES), "HOME": str(folder / "user")}
    done = subprocess.run(
        [program, "-i", "localhost,", "-c", "local", "-e", json.dumps(given), *options, "play.yml"],
        cwd=folder,
        env={**environment(), **roles},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    counts = re.findall(r"changed=(\d+)", done.stdout)
    return int(counts[-1]), done.stdout


def role(entry: str = "main", **given: Any) -> dict[str, Any]:
    task = {"name": "training_data", "tasks_from": entry}
    return {"ansible.builtin.include_role": task, "vars": given}


def test_files_are_copied_downloaded_linked_and_removed(tmp_path: Path, source: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(source, "inside")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/a.tar.gz"
    digest = sha256(archive)
    cifar = {
        **PUBLISHED["cifar-10-python"],
        "files": {"cifar-10-python.tar.gz": {"sha256": digest}},
    }
    given = {
        "__training_data_published": {**PUBLISHED, "cifar-10-python": cifar},
        "training_data": [
            {"name": "folder", "src": "source"},
            {"name": "archive", "src": "a.tar.gz", "sha256": digest},
            {"name": "fetched", "src": address, "sha256": digest},
            {"name": "cifar", "src": "a.tar.gz", "dataset": "cifar-10-python", "keras": True},
            {"name": "mounted", "mounted": "/proc/sys"},
        ],
    }
    changed, shown = run(tmp_path, [role()], "--check", "--diff", **given)
    assert changed == 4 + 2
    assert f"+{tmp_path}/host/archive: {digest};unpacked" in shown
    assert not (tmp_path / "host").exists()

    run(tmp_path, [role()], **given)
    host, links = tmp_path / "host", [tmp_path / "user/.keras/datasets" / name for name in KERAS]
    assert content(host / "folder") == content(source)
    for name in ("archive", "fetched"):
        assert content(host / name / "inside") == content(source)
    assert all(link.samefile(host / "cifar/cifar-10-python.tar.gz") for link in links)
    server.shutdown()
    assert run(tmp_path, [role()], **given)[0] == 0

    (source / "new").write_text("new")
    links[0].unlink()
    links[1].unlink()
    links[1].symlink_to("/nowhere")
    assert run(tmp_path, [role()], "--check", **given)[0] == 2
    assert not links[0].exists()
    compare = f"cmp source/new host/folder/new && cmp {links[0]} {links[1]}"
    change = f"{compare} && rm {links[1]} && echo own > {links[1]}"
    shell = {"ansible.builtin.shell": {"cmd": change, "chdir": str(tmp_path)}}
    run(tmp_path, [role(), shell, role("remove")], **given)
    assert (host.exists(), links[0].is_symlink()) == (False, False)
    assert links[1].read_text() == "own\n"


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("package", "options"),
    [("keras", "fname='cifar-10-batches-py-target', extract=True"),
     ("tf_keras", "'cifar-10-batches-py', untar=True")],
)  # fmt: skip
def test_keras_downloads_nothing(
    tf_python: str, tmp_path: Path, source: Path, package: str, options: str
) -> None:
    """Of links as the role makes them: see above."""
    archive, folder = tmp_path / "cifar-10-python.tar.gz", tmp_path / ".keras/datasets"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(source / "large", "cifar-10-batches-py/test_batch")
    folder.mkdir(parents=True)
    for link, target in PUBLISHED["cifar-10-python"]["keras"].items():
        (folder / link).symlink_to(tmp_path / target)
    program = f"""
import os, {package}
source = os.path.join(os.path.dirname({package}.__file__), "src/datasets")
text = open(os.path.join(source, "mnist.py")).read()
assert {PUBLISHED["mnist-npz"]["files"]["mnist.npz"]["sha256"]!r} in text
assert 'path="mnist.npz"' in text
text = open(os.path.join(source, "fashion_mnist.py")).read()
assert 'os.path.join("datasets", "fashion-mnist")' in text
for name in {list(PUBLISHED["fashion-mnist"]["keras"].values())}:
    assert name in text
text = open(os.path.join(source, "cifar10.py")).read()
assert {options.split("'")[1]!r} in text
path = {package}.utils.get_file(
    {options}, origin="http://127.0.0.1:9/a", file_hash={sha256(archive)!r})
print([name for _, _, names in os.walk(path) for name in names])
"""
    done = subprocess.run(
        [tf_python, "-c", program],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "['test_batch']\n", done.stderr


NAMED = {"name": "x", "src": "source"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"src": "source"}, "missing required arguments: name"),
    ({**NAMED, "name": "../x"}, "name must be"),
    ({"name": "x"}, "one of the following is required: src, mounted"),
    ({**NAMED, "mounted": "/mnt"}, "mutually exclusive: src|mounted"),
    ({"name": "x", "src": "https://example.org/a.tgz"}, "an address needs it"),
    ({**NAMED, "dest": "../y"}, "below training_data_root"),
    ({**NAMED, "dest": "/y"}, "below training_data_root"),
    ({**NAMED, "sha256": "abc"}, "64 hexadecimal"),
    ({**NAMED, "dataset": "imagenet"}, "fashion-mnist"),
    ({**NAMED, "unpack": True}, "goes without unpack"),
    ({"name": "x", "mounted": "mnt"}, "absolute path"),
    ({"name": "x", "mounted": "/tmp"}, "nothing is mounted. Mount it"),
    ({"name": "x", "mounted": "/nowhere"}, "No such file or directory. Mount it"),
    ({**NAMED, "src": "nowhere"}, "is not there"),
    ({**NAMED, "src": "source/large"}, "needs sha256"),
    ({**NAMED, "dest": "good/y"}, "lie around others"),
    ({**NAMED, "name": "good"}, "no two entries may have the same"),
    ({**NAMED, "keras": True}, "dataset"),
    ({**NAMED, "keras": True, "dataset": "cifar-10-binary"}, "cifar-10-python"),
    ({**NAMED, "keras": True, "dataset": "mnist-npz", "unpack": True}, "goes without unpack"),
]


def test_what_is_refused(tmp_path: Path, source: Path) -> None:
    """A bad entry stops the role before the good one comes."""
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 10**13)
    host, keras = tmp_path / "host", tmp_path / "user/.keras/datasets/mnist.npz"
    (host / "precious").mkdir(parents=True)
    keras.parent.mkdir(parents=True)
    keras.write_text("half of it")
    mnist = {**PUBLISHED["mnist-npz"], "files": {"mnist.npz": {"sha256": sha256(source / "large")}}}
    cases = [([{"name": "good", "src": "source"}, entry], words) for entry, words in REFUSED] + [
        ([{"name": "huge", "src": "huge", "sha256": "0" * 64}], "Too little space for huge"),
        ([{"name": "precious", "src": "source"}], "host/precious is there already"),
        (
            [{"name": "m", "src": "source/large", "dataset": "mnist-npz", "keras": True}],
            f"{keras} is there, and is not the published file of m",
        ),
    ]
    (tmp_path / "case.yml").write_text(json.dumps([{
        "block": [role(training_data="{{ case.0 }}")],
        "rescue": [{"ansible.builtin.set_fact": {
            "failures": "{{ failures + [case.1, ansible_failed_result | to_json] }}"
        }}],
    }]))  # fmt: skip
    loop = {
        "ansible.builtin.include_tasks": "case.yml",
        "loop": [list(case) for case in cases],
        "loop_control": {"loop_var": "case"},
    }
    keep = {"content": "{{ failures | to_json }}", "dest": str(tmp_path / "failures.json")}
    run(
        tmp_path,
        [{"ansible.builtin.set_fact": {"failures": []}}, loop, {"ansible.builtin.copy": keep}],
        __training_data_published={**PUBLISHED, "mnist-npz": mnist},
    )
    told = json.loads((tmp_path / "failures.json").read_text())
    assert told[::2] == [words for _, words in cases]
    for words, failure in zip(told[::2], told[1::2], strict=True):
        assert words in failure
    assert sorted(os.listdir(host)) == [".training_data", "m", "precious"]
    assert keras.read_text() == "half of it"
