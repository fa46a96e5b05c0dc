"""Many hosts whose logins hang are reported together, not in several batches."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from tests.support.jobs import train

HOSTS = 40
#: The number of simultaneous logins with 25 forks.
WAVE = 25


class MuteServer:
    """A server that accepts connections and sends nothing.

    ``most`` is the maximum number of connections that were open at once.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0), backlog=HOSTS)
        self.port = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._open = self.most = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._hold, args=(connection,), daemon=True).start()

    def _hold(self, connection: socket.socket) -> None:
        with self._lock:
            self._open += 1
            self.most = max(self.most, self._open)
        with connection:
            while connection.recv(4096):
                pass
        with self._lock:
            self._open -= 1


def test_many_hosts_hang_at_the_same_time(tmp_path: Path) -> None:
    server = MuteServer()
    lines = [
        f"mute-{number} ansible_host=127.0.0.{number} ansible_port={server.port}"
        for number in range(1, HOSTS + 1)
    ]
    inventory = tmp_path / "hosts.ini"
    inventory.write_text("\n".join(["[worker]", *lines, ""]))
    done = train("list", "-i", str(inventory), "-e", f"train_job_runs_dir={tmp_path}")
    assert done.returncode == 4, done.stderr
    assert f"mute-1, mute-2 and {HOSTS - 2} more are unreachable: " in done.stderr
    assert done.stderr.count("are unreachable") == 1
    assert server.most > WAVE
