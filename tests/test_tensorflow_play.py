"""The role ``tensorflow`` in playbooks."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow_role import HERE, Play, counts, make_lock, make_wheel, shown_version

pytest_plugins = ("tests.tensorflow_role",)


def test_a_machine_is_set_up_once(play: Play, tmp_path: Path) -> None:
    wheels = str(tmp_path / "wheels")
    looked = play("--check", playbook="setup", tensorflow_wheelhouse=wheels)
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert not (tmp_path / "root").exists()
    first = play(playbook="setup", tensorflow_wheelhouse=wheels)
    assert first.returncode == 0, first.stdout + first.stderr
    assert sum(counts(first.stdout, "changed").values()) == 1
    assert shown_version(str(tmp_path / "root" / "venv")) == "1.0"
    second = play(playbook="setup", tensorflow_wheelhouse=wheels)
    assert second.returncode == 0
    assert set(counts(second.stdout, "changed").values()) == {0}


def test_two_inventory_hosts_of_a_machine_install_once(play: Play, tmp_path: Path) -> None:
    done = play(playbook="each", tensorflow_wheelhouse_source=str(tmp_path / "wheels"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(counts(done.stdout, "changed").values()) == [0, 1]
    assert shown_version(str(tmp_path / "root" / "venv")) == "1.0"
    assert not (tmp_path / "root" / "wheels").exists()


def test_inventory_without_ranks_fails(play: Play, tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"worker": {}}))
    done = play(inventory=empty, playbook="setup")
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert f"The inventory {empty} has no host in the groups chief, worker, ps and" in said


def test_wrong_arguments_fail_before_anything_is_done(play: Play, tmp_path: Path) -> None:
    cases = {
        "tensorflow_variant": ("tpu", "value of tensorflow_variant must be one of"),
        "tensorflow_requirements": ("my.txt", "there is no lock file my.txt on the control node"),
    }
    for name, (value, said) in cases.items():
        done = play(playbook="setup", **{name: value})
        assert done.returncode != 0
        assert said in done.stdout + done.stderr
    gpu = play(tensorflow_variant="gpu")
    assert "tensorflow_variant is gpu, but the lock is" in gpu.stdout
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
def index(tmp_path: Path) -> Iterator[str]:
    """Host and port of an index that serves the stand-in."""
    make_wheel(tmp_path / "index" / "simple" / "tensorflow-cpu", "1.0")
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Index, directory=str(tmp_path / "index"))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_password_of_the_index_stays_secret(
    play: Play, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    good = play("-vvv", tensorflow_index_url=f"http://reader:s3cret@{index}/simple")
    assert good.returncode == 0, good.stdout + good.stderr
    assert shown_version(str(tmp_path / "root" / "venv")) == "1.0"
    assert "s3cret" not in good.stdout + good.stderr


def test_index_out_of_reach(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    refused = "http://reader:s3cret@127.0.0.1:1/simple"
    done = play(tensorflow_index_url=refused)
    assert done.returncode != 0
    assert "this host cannot reach the package index. Set tensorflow_index_url" in done.stdout
    assert "Connection refused" in done.stdout  # pip's own words
    assert "s3cret" not in done.stdout + done.stderr
    assert not (tmp_path / "root" / "venv").is_symlink()


def test_both_kinds_of_wheelhouse_are_refused(play: Play, tmp_path: Path) -> None:
    wheels = str(tmp_path / "wheels")
    both = play(tensorflow_wheelhouse=wheels, tensorflow_wheelhouse_source=wheels)
    assert "tensorflow_wheelhouse and tensorflow_wheelhouse_source are both set" in both.stdout
    relative = play(tensorflow_wheelhouse_source="wheels")
    assert "tensorflow_wheelhouse_source is 'wheels': write an absolute path" in relative.stdout
    assert not (tmp_path / "root").exists()


def test_wheels_come_from_the_control_node(play: Play, index: str, tmp_path: Path) -> None:
    """The playbook fills a folder from an index, and hosts that reach none install from it."""
    folder = tmp_path / "house"
    fill = {
        "playbook": "wheelhouse",
        "tensorflow_wheelhouse_source": str(folder),
        "tensorflow_wheelhouse_pythons": [HERE],
        "tensorflow_index_url": f"http://reader:s3cret@{index}/simple",
    }
    looked = play("--check", **fill)
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert "changed=1" in looked.stdout
    assert not folder.exists()
    filled = play("-vvv", **fill)
    assert filled.returncode == 0, filled.stdout + filled.stderr
    assert "s3cret" not in filled.stdout + filled.stderr
    wheel = "tensorflow_cpu-1.0-py3-none-any.whl"
    assert wheel in (folder / "SHA256SUMS").read_text()
    assert "changed=0" in play(**fill).stdout

    (folder / wheel).rename(tmp_path / "away")
    for option in ("--check", "--diff"):
        done = play(option, tensorflow_wheelhouse_source=str(folder))
        assert f"{folder} has no wheel for Python {HERE}" in done.stdout
        assert "of tensorflow-cpu 1.0. Fill it with playbooks/wheelhouse.yml" in done.stdout
        assert not (tmp_path / "root").exists()
    (tmp_path / "away").rename(folder / wheel)
    done = play(tensorflow_wheelhouse_source=str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown_version(str(tmp_path / "root" / "venv")) == "1.0"
    assert not (tmp_path / "root" / "wheels").exists()


def test_a_damaged_wheel_and_one_that_is_there_already(play: Play, tmp_path: Path) -> None:
    """What was sent before is not sent again; what arrives otherwise than told is not used."""
    stock, lock = tmp_path / "stock", tmp_path / "two.txt"
    there, damaged = make_wheel(stock, "1.0"), make_wheel(stock, "2.0", name="frobnicate")
    make_lock(lock, there, damaged)
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in (there, damaged)}
    sums = "".join(f"{digest}  {path.name}\n" for path, digest in digests.items())
    (stock / "SHA256SUMS").write_text(sums)
    good = damaged.read_bytes()
    damaged.write_bytes(b"x" * len(good))
    source = {"tensorflow_wheelhouse_source": str(stock), "tensorflow_requirements": str(lock)}
    broken = play(**source)
    assert broken.returncode != 0
    assert "frobnicate-2.0-py3-none-any.whl did not arrive as SHA256SUMS tells" in broken.stdout
    (kept,) = (tmp_path / "root" / "wheels").rglob("*.whl")
    assert kept.name == there.name

    damaged.write_bytes(good)
    there.write_bytes(b"x" * there.stat().st_size)  # must not be sent
    mended = play(**source)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert shown_version(str(tmp_path / "root" / "venv"), "frobnicate") == "2.0"


def test_extras_from_the_playbook_to_the_end(play: Play, tmp_path: Path) -> None:
    stock = tmp_path / "wheels"
    top = make_wheel(stock, "1.5", name="frobnicate")
    other = make_wheel(stock, "0.9", name="tensorflow-cpu")
    good = make_lock(tmp_path / "good.txt", top)
    clash = make_lock(tmp_path / "clash.txt", top, other)
    named = {"tensorflow_environment": "paper", "tensorflow_wheelhouse_source": str(stock)}
    for option in ("--check", "--diff"):
        refused = play(option, **named, tensorflow_extra_requirements=str(clash))
        assert refused.returncode != 0
        assert "tensorflow-cpu 0.9 (there: 1.0)" in refused.stdout
        assert not (tmp_path / "root").exists()
    bare = tmp_path / "bare.txt"
    bare.write_text("frobnicate==1.5\n")
    refused = play(**named, tensorflow_extra_requirements=str(bare))
    assert "bare.txt has no hash for frobnicate (line 1)" in refused.stdout
    missing = play(**named, tensorflow_extra_requirements="none.txt")
    assert "tensorflow_extra_requirements: there is no lock file none.txt" in missing.stdout

    done = play(**named, tensorflow_extra_requirements=str(good))
    assert done.returncode == 0, done.stdout + done.stderr
    link = str(tmp_path / "root" / "paper")
    assert (shown_version(link), shown_version(link, "frobnicate")) == ("1.0", "1.5")
    again = play(**named, tensorflow_extra_requirements=str(good))
    assert set(counts(again.stdout, "changed").values()) == {0}


def test_the_role_takes_away_what_it_brought(play: Play, tmp_path: Path) -> None:
    wheels = str(tmp_path / "wheels")
    assert play(tensorflow_wheelhouse=wheels).returncode == 0
    (tmp_path / "root" / "jobs").mkdir()
    removal = tmp_path / "remove.yml"
    role = {"name": "tensorflow", "tasks_from": "remove"}
    tasks = [{"ansible.builtin.import_role": role}]
    removal.write_text(json.dumps([{"hosts": "worker-0", "gather_facts": False, "tasks": tasks}]))
    looked = play("--check", playbook="remove")
    assert counts(looked.stdout, "changed") == {"worker-0": 1}
    done = play(playbook="remove")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "root stays, with jobs." in " ".join(done.stdout.split())
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["jobs"]
    assert counts(play(playbook="remove").stdout, "changed") == {"worker-0": 0}
