"""The role ``training_data`` at work on this machine: what Ansible's own modules do in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY, environment
from tests.training_data_role import content, sha256

pytest_plugins = ("tests.training_data_role",)


def run(folder: Path, entries: list[dict[str, Any]], *options: str) -> tuple[int, str]:
    """Run the role in a playbook of a user's own; return how many tasks changed something."""
    given = {
        "ansible_python_interpreter": sys.executable,
        "training_data": entries,
        "training_data_root": str(folder / "host"),
    }
    play = {"hosts": "localhost", "gather_facts": False, "roles": ["training_data"]}
    (folder / "play.yml").write_text(json.dumps([play]))
    program = str(Path(sys.executable).parent / "ansible-playbook")
    done = subprocess.run(
        [program, "-i", "localhost,", "-c", "local", "-e", json.dumps(given), *options, "play.yml"],
        cwd=folder,
        env={**environment(), "ANSIBLE_ROLES_PATH": str(REPOSITORY / "roles")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    counts = re.findall(r"changed=(\d+)", done.stdout)
    return int(counts[-1]), done.stdout


def test_files_are_copied_downloaded_and_put_in_place(tmp_path: Path, source: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as packed:
        packed.add(source, "inside")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/a.tar.gz"
    digest = sha256(tmp_path / "a.tar.gz")
    entries = [
        {"name": "folder", "src": "source"},
        {"name": "archive", "src": "a.tar.gz", "sha256": digest},
        {"name": "fetched", "src": address, "sha256": digest},
    ]
    changed, shown = run(tmp_path, entries, "--check", "--diff")
    assert changed == 3
    assert f"+{tmp_path}/host/archive: {digest};unpacked" in shown
    assert not (tmp_path / "host").exists()

    run(tmp_path, entries)
    assert content(tmp_path / "host/folder") == content(source)
    for name in ("archive", "fetched"):
        assert content(tmp_path / "host" / name / "inside") == content(source)
    server.shutdown()
    assert run(tmp_path, entries)[0] == 0
