"""Logins that commands for one machine share, and refusals after which they try again."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from train.gang import logins
from train.gang.logins import SESSIONS, Logins, is_worth_another_try, pauses, without_notes

BANNER = "Unauthorized access is not allowed, sessions expire after 8 h\n"
REFUSED = [
    "kex_exchange_identification: Connection closed by remote host\r\n"
    "Connection closed by 172.29.0.2 port 22\r\n",
    "kex_exchange_identification: read: Connection reset by peer\r\n"
    "Connection reset by 172.29.0.2 port 22\r\n",
    "ssh_exchange_identification: read: Connection reset by peer\r\n",
    "kex_exchange_identification: write: Broken pipe\r\n",
    "banner exchange: Connection to UNKNOWN port 65535: Broken pipe\r\n",
    # Through a jump host, which shows its own text first.
    f"{BANNER}kex_exchange_identification: Connection closed by remote host\r\n"
    "Connection closed by UNKNOWN port 65535\r\n",
    # One command more than may share a login.
    "mux_client_request_session: session request failed: Session open refused by peer\r\n"
    "ControlSocket /root/.ansible/cp/1 already exists, disabling multiplexing\r\n"
    "kex_exchange_identification: read: Connection reset by peer\r\n",
    # With -vvv.
    "debug1: Permission denied (nothing yet)\r\n"
    "debug1: kex_exchange_identification: banner line 0: Exceeded MaxStartups\r\n"
    "kex_exchange_identification: read: Connection reset by peer\r\n",
    # As Ansible reports it.
    'Data could not be sent to remote host "a". Make sure this host can be reached over ssh: '
    "kex_exchange_identification: Connection closed by remote host",
]
FINAL = [
    "",
    "ssh: connect to host 172.29.0.9 port 22: Connection refused\r\n",
    "ssh: connect to host 172.29.0.9 port 22: Connection timed out\r\n",
    "ssh: Could not resolve hostname nowhere: Name or service not known\r\n",
    "train@172.29.0.2: Permission denied (publickey).\r\n",
    "Host key verification failed.\r\n",
    "Connection timed out during banner exchange\r\nConnection to 172.29.0.2 port 22 timed out\r\n",
    # From a session that was interrupted: its command may have begun.
    "Connection to 172.29.0.2 closed by remote host.\r\n",
    "client_loop: send disconnect: Broken pipe\r\n",
    "Shared connection to 172.29.0.2 closed.\r\n",
    # A jump host that answers but does not reach the other host, or rejects this user.
    "channel 0: open failed: connect failed: No route to host\r\nstdio forwarding failed\r\n"
    "kex_exchange_identification: Connection closed by remote host\r\n",
    "jump@172.29.0.3: Permission denied (publickey).\r\n"
    "kex_exchange_identification: Connection closed by remote host\r\n",
    "ssh: connect to host 172.29.0.3 port 22: Connection refused\r\n"
    "kex_exchange_identification: Connection closed by remote host\r\n",
]


@pytest.mark.parametrize("errors", REFUSED)
def test_a_login_that_was_refused_among_others_is_worth_another_try(errors: str) -> None:
    assert is_worth_another_try(errors)


@pytest.mark.parametrize("errors", FINAL)
def test_other_failures_are_final(errors: str) -> None:
    assert not is_worth_another_try(errors)


def test_pauses_grow_and_end_at_the_limit() -> None:
    now = [100.0]
    waited = []
    for pause in pauses(10, lambda: now[0], lambda low, high: high):
        waited.append(pause)
        now[0] += pause + 0.1  # the attempt itself
    assert waited[0] == 0.2
    assert max(waited) == 2
    assert waited == sorted(waited)
    assert 7 < now[0] - 100 <= 10.1


def test_pauses_differ() -> None:
    assert len({next(pauses(10)) for _ in range(20)}) > 10


def test_notes_of_ssh_are_left_out() -> None:
    refused = b"mux_client_request_session: session request failed: Session open refused by peer"
    used = b"ControlSocket /root/.ansible/cp/1 already exists, disabling multiplexing"
    assert without_notes(b"%s\r\n%s\r\nown words\n" % (refused, used)) == b"own words\n"


def test_commands_fill_one_login_after_the_other(tmp_path: Path) -> None:
    logins = Logins(tmp_path / "new", "machine")
    with ExitStack() as held:
        taken = [held.enter_context(logins.session()) for _ in range(2 * SESSIONS + 1)]
        assert taken == [0] * SESSIONS + [1] * SESSIONS + [2]
        with Logins(tmp_path / "new", "another machine").session() as number:
            assert number == 0
        assert logins.count() == 3
    with logins.session() as number:
        assert number == 0
    assert Logins(tmp_path, "never used").count() == 1


def log_in_together(
    folder: Path, exists: Callable[[], bool], connect: Callable[[], str]
) -> list[str]:
    """Log in to one machine in six threads at once, and return the error of each."""
    begun = threading.Barrier(6)

    def log_in() -> str:
        begun.wait(10)
        return Logins(folder, "machine").log_in(exists, connect, 10)

    with ThreadPoolExecutor(6) as pool:
        return [future.result() for future in [pool.submit(log_in) for _ in range(6)]]


def test_one_login_at_a_time_is_made_and_the_others_use_it(tmp_path: Path) -> None:
    made: list[int] = []

    def connect() -> str:
        time.sleep(0.2)
        made.append(1)
        return ""

    assert log_in_together(tmp_path, lambda: bool(made), connect) == [""] * 6
    assert made == [1]


def test_those_who_waited_for_a_login_share_its_failure(tmp_path: Path) -> None:
    tries: list[int] = []

    def connect() -> str:
        tries.append(1)
        time.sleep(0.3)
        return "No route to höst"

    assert log_in_together(tmp_path, lambda: False, connect) == ["No route to höst"] * 6
    assert tries == [1]
    # The next login is tried again.
    logins = Logins(tmp_path, "machine")
    assert logins.log_in(lambda: False, lambda: "still away", 10) == "still away"
    assert logins.log_in(lambda: False, lambda: "", 10) == ""


def test_a_note_from_before_a_reboot_is_not_believed(tmp_path: Path) -> None:
    logins = Logins(tmp_path, "machine")
    assert logins.log_in(lambda: False, lambda: "away", 10) == "away"
    (note,) = tmp_path.glob("*-login")
    for text in (f"{time.monotonic() + 1e6} away", "away", "", "\0\0"):
        note.write_text(text)
        assert logins.log_in(lambda: False, lambda: "", 10) == ""


def test_a_login_of_another_process_that_hangs_is_not_waited_for_without_end(
    tmp_path: Path,
) -> None:
    logins, hangs, done = Logins(tmp_path, "machine"), threading.Event(), threading.Event()

    def connect() -> str:
        hangs.set()
        done.wait(30)
        return ""

    other = threading.Thread(target=logins.log_in, args=(lambda: False, connect, 10))
    other.start()
    assert hangs.wait(10)
    error = logins.log_in(lambda: False, lambda: "another try", 0.1)
    done.set()
    other.join(10)
    assert error == ""


def test_logins_wait_for_their_turn(tmp_path: Path) -> None:
    folder, now, most = tmp_path / "logins", 0, 0
    counting = threading.Lock()

    def log_in(number: int) -> None:
        nonlocal now, most
        with logins.turn(folder, f"node-{number}", places=3):
            with counting:
                now += 1
                most = max(most, now)
            time.sleep(0.02)
            with counting:
                now -= 1

    with ThreadPoolExecutor(30) as pool:
        list(pool.map(log_in, range(30)))
    assert most <= 3


def test_a_login_that_hangs_loses_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "_TURN_S", 0.1)
    order: list[str] = []

    def log_in() -> None:
        with logins.turn(tmp_path, "node-2", places=1):
            order.append("node-2")

    with ThreadPoolExecutor() as pool, logins.turn(tmp_path, "hangs", places=1):
        pool.submit(log_in).result(timeout=30)
        order.append("hangs")
    assert order == ["node-2", "hangs"]


def test_a_turn_is_not_taken_twice(tmp_path: Path) -> None:
    began = time.monotonic()
    with logins.turn(tmp_path, "node-1", places=1), logins.turn(tmp_path, "node-1", places=1):
        assert time.monotonic() - began < logins._TURN_S


def test_without_a_folder_for_locks_all_logins_begin_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with logins.turn(file / "logins", "node-1", places=1):
        assert not (file / "logins").exists()


def test_a_login_is_shared_while_ssh_listens(tmp_path: Path) -> None:
    path = tmp_path / "a0b1"
    assert not logins.is_shared(path)
    with socket.socket(socket.AF_UNIX) as ssh:
        ssh.bind(str(path))
        ssh.listen()
        assert logins.is_shared(path)
        ssh.listen(0)
        assert [logins.is_shared(path) for _ in range(4)] == [True] * 4, "its queue is full"
    assert path.is_socket()
    assert not logins.is_shared(path), "its ssh has ended"
    assert not logins.is_shared(tmp_path / ("x" * 200)), "too long for a socket"
