"""The role ``ssh_keys`` on a host: its key, its files, and what it tells."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roles.ssh_keys.control import texts
from tests.host_roles import load
from tests.ssh_keys_role import NAME, ROLE, a_key, an_answer, part, settle

ssh_keys = load(ROLE / "library/ssh_keys.py")
addresses, files, lines = part("addresses"), part("files"), part("lines")
place, states = part("place"), part("states")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/ssh_host_ed25519_key.pub").write_text(a_key("host") + " root@here\n")
    return tmp_path


class Host:
    """A home on this machine, and the module at work in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ssh = home / ".ssh"
        self.folder = self.ssh / NAME
        self.place = place.Place(str(home), NAME)

    def run(self, state: str, check: bool = False, **params: Any) -> dict[str, Any]:
        given = {
            "host_keys": f"{self.home}/keys/ssh_host_*_key.pub",
            "resolve": ["192.0.2.7"],
            "rekey": False,
            "wanted": [],
            "content": {},
            "keys": False,
            **params,
        }
        module = SimpleNamespace(
            params=given, check_mode=check, set_default_selinux_context=lambda *_: False
        )
        more = [] if state in ("known", "written", "absent") else ["train"]
        result: dict[str, Any] = getattr(states, f"run_{state}")(module, self.place, *more)
        return result

    def tree(self) -> dict[str, tuple[int, bytes]]:
        """Return mode and content of all that is in ``~/.ssh``."""
        return {
            str(path.relative_to(self.home)): (
                stat.S_IMODE(path.stat().st_mode),
                path.read_bytes() if path.is_file() else b"",
            )
            for path in sorted(self.home.rglob("*"))
            if self.ssh in (path, *path.parents)
        }


@pytest.fixture
def here(home: Path) -> Iterator[Host]:
    before = os.umask(0o077)
    yield Host(home)
    os.umask(before)


def content(*answers: tuple[str, dict[str, Any]], written: int = 100) -> dict[str, Any]:
    """Return what a host of this cluster must have."""
    hosts = {
        name: {"ansible_host": f"10.0.0.{number}", "answer": answer}
        for number, (name, answer) in enumerate(answers, 1)
    }
    return {**texts.content_of(settle(hosts).records, NAME), "written": written}


def test_a_fresh_host_gets_a_key_that_ssh_understands(here: Host) -> None:
    assert here.run("look")["key"] == ""
    assert here.run("keys", check=True)["changed"]
    assert not here.ssh.exists(), "check mode writes nothing"

    made = here.run("keys")
    assert made["changed"]
    path = here.folder / "id_ed25519"
    shown = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(path)], capture_output=True, text=True, check=True
    )
    assert made["key"] == " ".join(shown.stdout.split()[:2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in here.folder.iterdir()] == ["id_ed25519"], "no other copy is left"
    assert here.run("keys") == {**made, "changed": False}


def test_two_ranks_of_a_machine_make_one_key(here: Host) -> None:
    told: list[str] = []
    threads = [
        threading.Thread(target=lambda: told.append(here.run("keys")["key"])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 4
    assert set(told) == {here.run("look")["key"]}


@pytest.mark.parametrize("broken", ["", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END\n"])
def test_a_broken_key_is_made_again(here: Host, broken: str) -> None:
    here.run("keys")
    (here.folder / "id_ed25519").write_text(broken)
    assert here.run("look")["key"] == ""
    assert here.run("keys")["key"]


def test_a_key_with_a_passphrase_is_none(here: Host) -> None:
    here.folder.mkdir(parents=True)
    path = here.folder / "id_ed25519"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(path)]
    subprocess.run(command, check=True)
    assert here.run("look")["key"] == ""


def test_a_host_that_is_ready_matches_the_digests(here: Host) -> None:
    key = here.run("keys")["key"]
    wanted = content(("a", an_answer("a", key=key)), ("b", an_answer("b")))
    done = here.run("written", content=wanted)
    assert done["changed"]
    assert here.run("look")["digests"] == texts.digests_of(
        {name: text for name, text in wanted.items() if name != "written"}
    )
    before = here.tree()
    assert not here.run("written", content={**wanted, "written": 200})["changed"]
    assert here.tree() == before


@pytest.mark.parametrize(
    "harm",
    [
        lambda here: (here.folder / "known_hosts").write_text(""),
        lambda here: (here.folder / "config").unlink(),
        lambda here: (here.folder / "hosts.json").write_text("{"),
        lambda here: (here.ssh / "authorized_keys").unlink(),
        lambda here: (here.ssh / "config").write_text("Host *\nInclude train-cluster/config\n"),
        lambda here: (here.ssh / "authorized_keys").chmod(0o666),
        lambda here: (here.folder / "id_ed25519").chmod(0o644),
        lambda here: here.ssh.chmod(0o770),
        lambda here: shutil.copy(here.folder / "id_ed25519", here.folder / "id_ed25519.next"),
    ],
    ids=["known_hosts", "config", "hosts", "lines", "include", "mode", "key", "folder", "spare"],
)  # fmt: skip
def test_what_was_harmed_is_seen_and_mended(here: Host, harm: Callable[[Host], None]) -> None:
    here.run("keys")
    wanted = content(("a", an_answer("a", key=here.run("look")["key"])))
    here.run("written", content=wanted)
    ready = here.run("look")["digests"]
    harm(here)
    assert here.run("look")["digests"] != ready
    assert here.run("written", content=wanted, check=True)["changed"]
    here.run("written", content=wanted)
    assert here.run("look")["digests"] == ready


def test_the_users_own_lines_stay(here: Host) -> None:
    here.ssh.mkdir()
    own = b'# mine \xff\nssh-rsa AAAA me\nfrom="10.0.0.9" ssh-ed25519 AAAA other-cluster:x'
    (here.ssh / "authorized_keys").write_bytes(own)
    (here.ssh / "config").write_bytes(b"# mine \xff\nHost *\n  User x")
    (here.ssh / "known_hosts").write_text("x ssh-rsa AAAA\n")
    (here.ssh / "id_ed25519").write_text("mine")
    before = here.tree()

    here.run("keys")
    here.run("written", content=content(("a", an_answer("a")), ("b", an_answer("b"))))
    here.run("written", content=content(("b", an_answer("b"))))
    lines = (here.ssh / "authorized_keys").read_bytes().splitlines()
    assert b"\n".join(lines[:3]) == own
    assert [line.split()[-1] for line in lines[3:]] == [b"train-cluster:b"]

    gone = here.run("absent", keys=True)
    assert gone["left"] == []
    mended = {name: (mode, text.rstrip(b"\n")) for name, (mode, text) in here.tree().items()}
    assert mended == {name: (mode, text.rstrip(b"\n")) for name, (mode, text) in before.items()}


def test_a_link_to_the_configuration_stays_one(here: Host) -> None:
    (here.home / "dotfiles").mkdir()
    (here.home / "dotfiles/config").write_text("Host x\n")
    here.ssh.mkdir()
    (here.ssh / "config").symlink_to("../dotfiles/config")
    here.run("written", content=content(("a", an_answer("a"))))
    assert (here.ssh / "config").is_symlink()
    assert "Include train-cluster/config" in (here.home / "dotfiles/config").read_text()


def test_a_full_disk_leaves_the_old_file(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = content(("a", an_answer("a")))
    here.run("written", content=wanted)
    before = here.tree()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        here.run("written", content=content(("b", an_answer("b"))))
    assert here.tree() == before


def test_a_file_of_somebody_else_is_refused(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    here.ssh.mkdir()
    (here.ssh / "config").write_text("Host x\n")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(files.ProblemError, match=r"config belongs to .*: give it"):
        here.run("written", content=content(("a", an_answer("a"))))


def test_the_include_of_another_cluster_may_stand_before(here: Host) -> None:
    text = lines.with_include(lines.with_include("# mine\nHost x\n", "one"), "two")
    assert lines.is_included(text, "one")
    assert lines.is_included(text, "two")
    assert not lines.is_included("Include mine\n" + text, "one")
    assert lines.without_include(lines.without_include(text, "two"), "one") == "# mine\nHost x\n"


def test_a_key_is_changed_in_two_steps(here: Host) -> None:
    old = here.run("keys")["key"]
    offered = here.run("keys", rekey=True)
    assert offered["key"] == old
    assert offered["next"] not in ("", old)
    assert here.run("keys", rekey=True) == {**offered, "changed": False}, "half-way: no third key"
    assert here.run("switched", check=True)["key"] == old

    switched = here.run("switched")
    assert (switched["key"], switched["next"]) == (offered["next"], "")
    # A login that has begun with the old key's public half finds the new key under the other name.
    assert (here.folder / "id_ed25519.next").exists()
    here.run("written", content=content(("a", an_answer("a", key=switched["key"]))))
    assert not (here.folder / "id_ed25519.next").exists()
    assert not here.run("switched")["changed"]


def test_after_a_break_between_switching_and_writing_keys_can_be_changed(here: Host) -> None:
    here.run("keys")
    here.run("keys", rekey=True)
    key = here.run("switched")["key"]
    again = here.run("keys", rekey=True)
    assert again["key"] == key
    assert again["next"] not in ("", key)


def test_the_key_can_be_left(here: Host) -> None:
    here.run("keys")
    here.run("written", content=content(("a", an_answer("a"))))
    before = here.tree()
    assert here.run("absent", check=True)["changed"]
    assert here.tree() == before
    assert here.run("absent")["left"] == [str(here.folder / "id_ed25519")]
    assert [p.name for p in here.folder.iterdir()] == ["id_ed25519"]
    assert not (here.ssh / "config").exists(), "what would be empty was not there before"
    assert not here.run("absent")["changed"]
    here.run("absent", keys=True)
    assert not here.folder.exists()


def test_a_host_without_public_keys_says_what_to_do(here: Host) -> None:
    shutil.rmtree(here.home / "keys")
    with pytest.raises(files.ProblemError, match="is sshd set up"):
        here.run("look")


def test_a_host_tells_only_what_it_is_asked(here: Host) -> None:
    here.run("written", content=content(("a", an_answer("a")), ("b", an_answer("b"))))
    told = here.run("known", wanted=["b", "x"])
    assert [record["names"] for record in told["hosts"]] == [["b"]]
    assert told["written"] == 100


def test_a_name_is_resolved_to_what_others_see(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"here": ["127.0.1.1"], "lab": ["10.0.0.1", "fe80::1%eth0", "2001:db8::1"]}

    def resolve(name: str, *_: Any) -> list[Any]:
        if name not in names:
            raise OSError("unknown")
        return [(0, 0, 0, "", (address, 0)) for address in names[name]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert addresses.find_addresses(["192.0.2.7"]) == [], "an address needs no look-up"
    assert addresses.find_addresses(["192.0.2.7", "nowhere"]) == []
    assert addresses.find_addresses(["lab", "here"]) == ["10.0.0.1", "2001:db8::1"]
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.2 22")
    assert addresses.find_addresses(["here"]) == ["10.0.0.2"]


@pytest.mark.parametrize("name", ["..", "config", "a/b", "A", "a\n", ""])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    module = SimpleNamespace(params={"name": name, "user": "", "state": "absent"}, check_mode=True)
    with pytest.raises(files.ProblemError, match="ssh_keys_name"):
        ssh_keys.run(module)
