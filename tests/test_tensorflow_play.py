"""The role ``tensorflow`` in playbooks: with wheels on the host, from an index, from here."""

from __future__ import annotations

import base64
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.set_up_role import recap
from tests.tensorflow_role import HERE, Play, make_lock, make_wheel, shown_version

pytest_plugins = ("tests.tensorflow_role",)


def changed(output: str) -> int:
    """How many changes there were on all hosts."""
    return sum(row["changed"] for row in recap(output).values())


def hidden(folder: Path) -> list[str]:
    """What the role leaves in the folder of the environments beside these."""
    return [path.name for path in (folder / "root" / "venvs").glob(".*")]


def test_a_machine_is_set_up_once_and_cleared(play: Play, tmp_path: Path) -> None:
    hosts: dict[str, Any] = {"worker-0": {}, "worker-1": {}}
    given = {"hosts": hosts, "tensorflow_wheelhouse": str(tmp_path / "wheels")}
    root = tmp_path / "root"
    checked = play("--check", "--diff", playbook="setup", **given)
    assert checked.returncode == 0, checked.stdout
    assert "+venv -> tensorflow-1.0-cpu" in checked.stdout
    assert changed(checked.stdout) == 1
    assert not root.exists()
    first = play(playbook="setup", **given)
    assert first.returncode == 0, first.stdout
    assert shown_version(root / "venv") == "1.0"
    assert hidden(tmp_path) == [".lock"]
    second = play(playbook="setup", **given)
    assert (second.returncode, changed(second.stdout)) == (0, 0)

    (root / "jobs").mkdir()
    assert changed(play("--check", playbook="remove").stdout) == 1
    done = play(playbook="remove")
    assert (done.returncode, changed(done.stdout)) == (0, 1), done.stdout
    assert "root stays, with jobs." in " ".join(done.stdout.split())
    assert [path.name for path in root.iterdir()] == ["jobs"]
    assert changed(play(playbook="remove").stdout) == 0


def test_what_is_refused_before_anything_is_done(play: Play, tmp_path: Path) -> None:
    """Each host has a mistake of its own, and its own message."""
    wheels = tmp_path / "wheels"
    top = make_wheel(wheels, "1.5", name="frobnicate")
    other = make_wheel(wheels, "0.9", name="tensorflow-cpu")
    clash = make_lock(tmp_path / "clash.txt", top, other)
    absent = make_lock(tmp_path / "absent.txt", make_wheel(tmp_path / "away", "1.0"), top)
    (tmp_path / "bare.txt").write_text("frobnicate==1.5\n")
    top.unlink()
    source = {"tensorflow_wheelhouse_source": str(wheels)}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tensorflow_variant": "tpu"}, "value of tensorflow_variant must be one of"),
        ({"tensorflow_requirements": "my.txt"}, "/my.txt on the control node (a relative path"),
        ({"tensorflow_variant": "gpu"}, "tensorflow_variant is gpu, but the lock is"),
        (
            {"tensorflow_wheelhouse": str(wheels), **source},
            "tensorflow_wheelhouse and tensorflow_wheelhouse_source are both set",
        ),
        (
            {"tensorflow_wheelhouse_source": "wheels"},
            "tensorflow_wheelhouse_source is 'wheels': write an absolute path",
        ),
        ({"tensorflow_root": "train"}, "tensorflow_root is 'train': write an absolute path"),
        ({"tensorflow_keep": -1}, "tensorflow_keep is -1: write how many environments stay"),
        ({"tensorflow_python_supported": ["3.10"]}, "supported is ['3.10']: write the oldest and"),
        (
            {"tensorflow_requirements": str(absent), **source},
            f"{wheels} on the control node has no wheel for Python",
        ),
        (
            {"tensorflow_requirements": str(absent), **source},
            "of frobnicate 1.5. Fill it with playbooks/wheelhouse.yml",
        ),
        (
            {"tensorflow_extra_requirements": str(clash), **source},
            "tensorflow-cpu 0.9 (there: 1.0). Lock it within",
        ),
        (
            {"tensorflow_extra_requirements": str(tmp_path / "bare.txt")},
            "frobnicate==1.5 has no hash",
        ),
        (
            {"tensorflow_extra_requirements": "none.txt"},
            "tensorflow_extra_requirements: there is no lock file",
        ),
    ]
    for name in ("jobs", "venvs", "a/b", "..", "-x", ""):
        said = f"tensorflow_environment is '{name}': take a name"
        cases.append(({"tensorflow_environment": name}, said))
    for url in ("pypi.s3cret/simple", "https:s3cret"):
        said = "tensorflow_index_url is no address of a package index"
        cases.append(({"tensorflow_index_url": url}, said))
    hosts = {f"worker-{number}": wrong for number, (wrong, _) in enumerate(cases)}
    for options in (("--check",), ()):
        done = play(*options, hosts=hosts)
        assert {row["failed"] for row in recap(done.stdout).values()} == {1}, done.stdout
        for number, (_, said) in enumerate(cases):
            shown = [part for part in done.stdout.split("[ERROR]") if said in part]
            assert any(f"worker-{number}]: FAILED" in part for part in shown), said
        assert "s3cret" not in done.stdout
    assert not (tmp_path / "root").exists()


class Index(SimpleHTTPRequestHandler):
    """A package index that wants a password."""

    def do_GET(self) -> None:
        wanted = base64.b64encode(b"reader:s3cret").decode()
        if self.headers.get("Authorization") == f"Basic {wanted}":
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=index")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an index that serves the stand-in."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    make_wheel(tmp_path / "index" / "simple" / "tensorflow-cpu", "1.0")
    handler = partial(Index, directory=str(tmp_path / "index"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://reader:s3cret@127.0.0.1:{server.server_port}/simple"
        server.shutdown()


UNREACHABLE = "http://reader:s3cret@127.0.0.1:1/simple"


def test_password_of_the_index_stays_secret(play: Play, index: str, tmp_path: Path) -> None:
    bad = {"tensorflow_index_url": UNREACHABLE, "tensorflow_root": str(tmp_path / "bad")}
    hosts = {"worker-0": {"tensorflow_index_url": index}, "worker-1": bad}
    done = play("-vvv", hosts=hosts)
    assert [row["failed"] for row in recap(done.stdout).values()] == [0, 1], done.stdout
    assert "this host cannot reach the package index. Set tensorflow_index_url" in done.stdout
    assert "Connection refused" in done.stdout  # pip's own words
    assert not (tmp_path / "bad" / "venv").is_symlink()
    assert shown_version(tmp_path / "root" / "venv") == "1.0"
    assert "s3cret" not in done.stdout


def test_a_folder_of_wheels_on_the_control_node(play: Play, index: str, tmp_path: Path) -> None:
    """The playbook fills it from an index; it keeps what is whole, and fixes what is not."""
    folder = tmp_path / "house"
    wheel = folder / "tensorflow_cpu-1.0-py3-none-any.whl"
    fill = {
        "playbook": "wheelhouse",
        "tensorflow_wheelhouse_pythons": [HERE],
        "tensorflow_wheelhouse_source": str(folder),
        "tensorflow_requirements": str(tmp_path / "lock.txt"),
    }
    checked = play("--check", **fill)
    assert (checked.returncode, folder.exists()) == (0, False), checked.stdout
    assert changed(checked.stdout) > 0
    refused = play("-vvv", **fill, tensorflow_index_url=UNREACHABLE)
    assert refused.returncode != 0
    assert "pip could not download the wheels of" in refused.stdout
    assert "Connection refused" in refused.stdout
    filled = play("-vvv", **fill, tensorflow_index_url=index)
    assert filled.returncode == 0, filled.stdout
    for done in (refused, filled):
        assert "s3cret" not in done.stdout
    # What is there and whole needs no index; what is damaged is downloaded again.
    assert changed(play(**fill, tensorflow_index_url=UNREACHABLE).stdout) == 0
    good = wheel.read_bytes()
    wheel.write_bytes(b"x" * len(good))
    damaged = play(tensorflow_wheelhouse_source=str(folder))
    assert "has another file than the one that is locked" in damaged.stdout
    assert play(**fill, tensorflow_index_url=index).returncode == 0
    assert wheel.read_bytes() == good


def test_wheels_and_packages_on_top_come_from_the_control_node(play: Play, tmp_path: Path) -> None:
    """To two inventory hosts of a machine, of which one installs."""
    top = make_wheel(tmp_path / "wheels", "1.5", name="frobnicate")
    large = make_wheel(tmp_path / "wheels", "1.0", f"# {'x' * 20_000_000}\n")
    given = {
        "hosts": {"worker-0": {}, "worker-1": {}},
        "tensorflow_wheelhouse_source": str(tmp_path / "wheels"),
        "tensorflow_requirements": str(make_lock(tmp_path / "large.txt", large)),
        "tensorflow_environment": "paper",
        "tensorflow_extra_requirements": str(make_lock(tmp_path / "extra.txt", top)),
    }
    done = play(**given)
    assert done.returncode == 0, done.stdout
    installing = done.stdout.split("Install, try and link")[1].split("TASK")[0]
    assert (installing.count("changed: "), installing.count("ok: ")) == (1, 1)
    assert f"(item={large.name})" in done.stdout
    assert f"(item={top.name})" not in done.stdout  # in the archive
    link = tmp_path / "root" / "paper"
    assert (shown_version(link), shown_version(link, "frobnicate")) == ("1.0", "1.5")
    assert hidden(tmp_path) == [".lock"]
    assert changed(play(**given).stdout) == 0
