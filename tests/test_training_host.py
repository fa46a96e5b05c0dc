"""The module ``training_mounts``: what it makes of fstab, and what it mounts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.host_roles import module

SHARE = {
    "src": "nas:/export/data",
    "path": "/mnt/test-of-training-host",
    "fstype": "nfs",
    "opts": "hard,x-train.host",
}
LINE = "nas:/export/data /mnt/test-of-training-host nfs hard,x-train.host 0 0\n"
SHM = {
    "src": "tmpfs",
    "path": "/dev/shm",
    "fstype": "tmpfs",
    "opts": "size=200000000,nosuid,x-train.host",
}
OWN = "# of the operator\nUUID=1 / ext4 defaults 0 1\nnas:/home /home nfs soft 0 0\n"
mounts = module("training_host", "training_mounts")


class Host:
    """A made-up host, whose mount commands change a table."""

    def __init__(self, folder: Path) -> None:
        self.fstab = folder / "fstab"
        self.fstab.write_text(OWN)
        self.mounted: dict[str, str] = {}
        self.folders: list[str] = []
        self.commands: list[list[str]] = []
        self.failing: dict[str, str] = {}
        self.large = True

    def run(self, command: list[str]) -> str:
        self.commands.append(command)
        path = command[-1]
        reason = self.failing.get(" ".join(command)) or self.failing.get(command[0], "")
        if reason:
            return reason
        if command[0] == "mount" and len(command) == 2:
            lines = [line.split() for line in self.fstab.read_text().splitlines()]
            self.mounted[path] = next(fields[0] for fields in lines if fields[1] == path)
        if command[0] == "umount":
            self.mounted.pop(path)
        if command[0] == "mount" and "-o" in command:
            self.large = True
        return ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(mounts, "FSTAB", str(made.fstab))
    monkeypatch.setattr(mounts, "run", made.run)
    monkeypatch.setattr(mounts, "mounted", made.mounted.get)
    monkeypatch.setattr(mounts, "large_enough", lambda _: made.large)
    monkeypatch.setattr(mounts.os, "makedirs", lambda path, **_: made.folders.append(path))
    monkeypatch.setattr(mounts.os, "rmdir", made.folders.remove)
    return made


def test_a_share_comes_and_goes(host: Host) -> None:
    assert mounts.keep([SHARE], check_mode=True)["changed"]
    assert host.fstab.read_text() == OWN
    assert host.commands == []
    assert mounts.keep([SHARE], check_mode=False)["changed"]
    assert host.fstab.read_text() == OWN + LINE
    assert host.mounted == {SHARE["path"]: "nas:/export/data"}
    assert not mounts.keep([SHARE], check_mode=False)["changed"]
    assert not mounts.keep([SHARE], check_mode=True)["changed"]
    gone = mounts.keep([], check_mode=False)
    assert (gone["changed"], gone["removed"]) == (True, [SHARE["path"]])
    assert host.fstab.read_text() == OWN
    assert host.mounted == {}


def test_lines_of_others_stay(host: Host) -> None:
    text, removed = mounts.merge(OWN, [SHARE])
    assert text == OWN + LINE
    assert removed == []
    # The line of an operator for the same place is replaced where it stands.
    mine = "nas:/old  /mnt/test-of-training-host  nfs  soft  0 0\n"
    text, _ = mounts.merge(mine + OWN, [SHARE])
    assert text == LINE + OWN
    # What means the same stays as it was written.
    same = LINE.replace(" ", "\t")
    assert mounts.merge(same, [SHARE]) == (same, [])


def test_spaces_in_paths(host: Host) -> None:
    share = {**SHARE, "path": "/mnt/my data"}
    text, _ = mounts.merge("", [share])
    assert "/mnt/my\\040data" in text
    assert mounts.merge(text, [share]) == (text, [])
    assert mounts.merge(text, []) == ("", ["/mnt/my data"])


def test_a_mount_that_fails_leaves_fstab(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.failing["mount"] = "mount.nfs: Connection refused"

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(mounts.MountError) as error:
        mounts.keep([SHARE], check_mode=False)
    for words in ("nas:/export/data", SHARE["path"], "Connection refused", "nas does not answer"):
        assert words in str(error.value)
    assert host.fstab.read_text() == OWN
    assert host.folders == []


def test_another_share_in_its_place(host: Host) -> None:
    host.mounted[SHARE["path"]] = "nas:/old"
    assert mounts.keep([SHARE], check_mode=False)["changed"]
    assert host.mounted[SHARE["path"]] == "nas:/export/data"
    host.mounted[SHARE["path"]] = "nas:/old"
    host.failing["umount"] = "target is busy"
    with pytest.raises(mounts.MountError, match="target is busy"):
        mounts.keep([SHARE], check_mode=False)


def test_a_stale_share_is_mounted_anew(host: Host) -> None:
    mounts.keep([SHARE], check_mode=False)
    host.failing[f"stat --file-system -- {SHARE['path']}"] = "Stale file handle"
    host.commands.clear()
    assert mounts.keep([SHARE], check_mode=False)["changed"]
    assert ["umount", "--lazy", SHARE["path"]] in host.commands
    assert ["mount", SHARE["path"]] in host.commands


def test_new_options_are_told(host: Host) -> None:
    mounts.keep([SHARE], check_mode=False)
    result = mounts.keep([{**SHARE, "opts": "soft,x-train.host"}], check_mode=False)
    assert result["changed"]
    assert "count from the next mount on" in result["notes"][0]
    assert "soft,x-train.host" in host.fstab.read_text()


def test_shared_memory(host: Host) -> None:
    host.mounted["/dev/shm"] = "shm"
    assert not mounts.keep([SHM], check_mode=False)["changed"]
    assert host.fstab.read_text() == OWN  # it is large enough by itself
    host.large = False
    assert mounts.keep([SHM], check_mode=True)["changed"]
    assert mounts.keep([SHM], check_mode=False)["changed"]
    assert ["mount", "-o", "remount," + SHM["opts"], "/dev/shm"] in host.commands
    assert "/dev/shm" in host.fstab.read_text()
    assert not mounts.keep([SHM], check_mode=False)["changed"]
    mounts.keep([], check_mode=False)
    assert host.fstab.read_text() == OWN
    assert "/dev/shm" in host.mounted


def test_a_container_cannot_change_it(host: Host) -> None:
    host.mounted["/dev/shm"] = "shm"
    host.large = False
    host.failing["mount"] = "permission denied"
    with pytest.raises(mounts.MountError, match="docker run --shm-size"):
        mounts.keep([SHM], check_mode=False)
    assert host.fstab.read_text() == OWN


def test_size_from_options() -> None:
    assert mounts.large_enough({"path": "/", "opts": "rw,size=1000"})
    assert not mounts.large_enough({"path": "/", "opts": "size=1000000000000000000,rw"})


def test_what_is_mounted(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text("systemd-1 /mnt/data autofs rw 0 0\n")
    assert mounts.mounted("/mnt/data", str(table)) is None
    table.write_text("systemd-1 /mnt/data autofs rw 0 0\nnas:/x /mnt/data nfs4 rw 0 0\n")
    assert mounts.mounted("/mnt/data", str(table)) == "nas:/x"
