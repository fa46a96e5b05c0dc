"""Where the role ``tensorflow`` gets wheels from: an index, a folder of the control node."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow_role import HERE, Play, counts, make_wheel, shown_version

pytest_plugins = ("tests.tensorflow_role",)


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


def test_password_of_the_index_stays_secret(play: Play, index: str, tmp_path: Path) -> None:
    refused = play(tensorflow_index_url="http://reader:s3cret@127.0.0.1:1/simple")
    assert refused.returncode != 0
    assert "this host cannot reach the package index. Set tensorflow_index_url" in refused.stdout
    assert "Connection refused" in refused.stdout  # pip's own words
    assert not (tmp_path / "root" / "venv").is_symlink()
    good = play("-vvv", tensorflow_index_url=index)
    assert good.returncode == 0, good.stdout + good.stderr
    assert shown_version(tmp_path / "root" / "venv") == "1.0"
    for done in (refused, good):
        assert "s3cret" not in done.stdout + done.stderr


def test_wheels_come_from_the_control_node(play: Play, index: str, tmp_path: Path) -> None:
    """The playbook fills a folder from an index, and hosts that reach none install from it."""
    folder = tmp_path / "house"
    source = {"tensorflow_wheelhouse_source": str(folder)}
    fill = {"playbook": "wheelhouse", "tensorflow_wheelhouse_pythons": [HERE], **source}
    unreachable = "http://reader:s3cret@127.0.0.1:1/simple"
    checked = play("--check", **fill)
    assert (checked.returncode, folder.exists()) == (0, False), checked.stdout + checked.stderr
    assert counts(checked.stdout, "changed") != [0]
    refused = play("-vvv", **fill, tensorflow_index_url=unreachable)
    assert refused.returncode != 0
    assert "pip could not download the wheels of" in refused.stdout
    assert "Connection refused" in refused.stdout
    filled = play("-vvv", **fill, tensorflow_index_url=index)
    assert filled.returncode == 0, filled.stdout + filled.stderr
    for done in (refused, filled):
        assert "s3cret" not in done.stdout + done.stderr
    # What is there and whole needs no index; what is damaged is downloaded again.
    assert counts(play(**fill, tensorflow_index_url=unreachable).stdout, "changed") == [0]
    wheel = folder / "tensorflow_cpu-1.0-py3-none-any.whl"
    good = wheel.read_bytes()
    wheel.write_bytes(b"x" * len(good))
    damaged = play(**source)
    assert "has another file than the one that is locked" in damaged.stdout
    assert play(**fill, tensorflow_index_url=index).returncode == 0
    assert wheel.read_bytes() == good

    wheel.rename(tmp_path / "away")
    for option in ("--check", "--diff"):
        done = play(option, **source)
        assert f"{folder} on the control node has no wheel for Python {HERE}" in done.stdout
        assert "of tensorflow-cpu 1.0. Fill it with playbooks/wheelhouse.yml" in done.stdout
    (tmp_path / "away").rename(wheel)
    # Two inventory hosts of a machine: one installs.
    done = play(playbook="each", **source)
    assert done.returncode == 0, done.stdout + done.stderr
    installing = done.stdout.split("Install, try and link")[1].split("TASK")[0]
    assert (installing.count("changed: "), installing.count("ok: ")) == (1, 1)
    assert shown_version(tmp_path / "root" / "venv") == "1.0"
    assert [path.name for path in (tmp_path / "root/venvs").glob(".*")] == [".lock"]
