"""The module ``host_look``: what it finds different on a host, and what it says of limits."""

from __future__ import annotations

import json
import os
import pwd
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from tests.host_roles import module, part

ME = pwd.getpwuid(os.getuid()).pw_name
host_look = module("training_host", "host_look")
look, limits, mounts = (part(f"host_setup.{name}") for name in ("look", "limits", "mounts"))
packages, distribution = part("host_setup.packages"), part("host_setup.distribution")


def call(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        host_look.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up host: Debian with python3, an empty fstab, nothing mounted."""
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian 12"\n')
    (tmp_path / "status").write_text(
        "Package: python3\nStatus: install ok installed\nVersion: 3.11\n\n"
        "Package: chrony\nStatus: deinstall ok config-files\n"
    )
    (tmp_path / "fstab").write_text("# none\n")
    (tmp_path / "mounts").write_text("/dev/vda / ext4 rw 0 0\n")
    release = distribution.os_release
    installed = packages.dpkg_installed
    monkeypatch.setattr(look, "os_release", lambda: release(str(tmp_path / "os-release")))
    monkeypatch.setattr(packages, "dpkg_installed", lambda: installed(str(tmp_path / "status")))
    monkeypatch.setattr(mounts, "FSTAB", str(tmp_path / "fstab"))
    monkeypatch.setattr(mounts, "MOUNTS", str(tmp_path / "mounts"))
    return tmp_path


# Distribution and packages


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("ID=debian\n", "debian"),
        ("ID=ubuntu\nID_LIKE=debian\n", "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "redhat"),
        ('ID="rhel"\nID_LIKE="fedora"\n', "redhat"),
        ("ID=alpine\n", "alpine"),
        ("", ""),
    ],
)
def test_family(text: str, family: str, tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text(text)
    assert distribution.family(distribution.os_release(str(tmp_path / "os-release"))) == family


def test_packages_by_family(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {"debian": ["python3", "chrony"], "redhat": ["other"]}
    result = call(capsys, packages=wanted)
    assert result["differences"] == ["package chrony is not installed"]
    assert not result["ready"]
    assert (result["family"], result["distribution"], result["release"]) == (
        "debian",
        "debian",
        "12",
    )
    assert call(capsys, packages={"debian": ["python3"]})["ready"]


# Files, folders and users


def test_files_and_folders(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = host / "some.conf"
    file.write_text("a\nb\n")
    file.chmod(0o640)
    right = {"path": str(file), "content": "a\nb\n", "mode": "0640", "owner": ME}
    assert call(capsys, files=[right], folders=[{"path": str(host)}])["ready"]
    for change, difference in (
        ({"content": "a\n"}, "has another content"),
        ({"mode": "0644"}, "has mode 0640"),
        ({"owner": "daemon"}, f"belongs to {ME}"),
        ({"path": str(host)}, "is a folder"),
        ({"path": str(host / "none")}, "is not there"),
        ({"path": str(file / "below")}, "is not there"),
    ):
        result = call(capsys, files=[{**right, **change}])
        assert not result["ready"]
        assert difference in result["differences"][0]
    assert "is no folder" in call(capsys, folders=[{"path": str(file)}])["differences"][0]


def test_lines_among_others(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = host / "authorized_keys"
    file.write_text("# mine\nkey one\nkey two\n")
    there = {"path": str(file), "lines": ["key two"]}
    assert call(capsys, files=[there])["ready"]
    missing = {"path": str(file), "lines": ["key two", "key three", "key tw"]}
    assert "lacks 2 line(s)" in call(capsys, files=[missing])["differences"][0]


def test_user_in_paths_and_owners(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Path(f"~{ME}").expanduser()
    result = call(capsys, folders=[{"path": "~{user}", "owner": "{user}"}])
    assert result["ready"]
    assert result["user"] == ME
    result = call(capsys, user="daemon", folders=[{"path": str(home), "owner": "{user}"}])
    assert result["differences"] == [f"{home} belongs to {ME}"]
    result = call(capsys, user="nobody-of-this-name")
    assert result["differences"] == ["user nobody-of-this-name is not there"]


# Services


def test_services(
    host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = host / "systemctl"
    fake.write_text(
        "#!/bin/sh\nprintf 'ActiveState=active\\nUnitFileState=enabled\\n\\n"
        "ActiveState=inactive\\nUnitFileState=enabled\\n\\n"
        "ActiveState=active\\nUnitFileState=disabled\\n'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{host}:{os.environ['PATH']}")
    assert part("host_setup.services").check_services(["good", "down", "off"]) == [
        "service down is not active",
        "service off is not enabled",
    ]


# Limits


def test_limits_as_pam_wants_them() -> None:
    content, notes = limits.render_limits("train", 65536, "unlimited", {})
    assert content.splitlines()[1:] == [
        "train soft nofile 65536",
        "train hard nofile 65536",
        "train soft memlock unlimited",
        "train hard memlock unlimited",
    ]
    assert notes == []
    content, _ = limits.render_limits("train", 0, "1024", {})
    assert content.splitlines()[1:] == [
        "train soft memlock 1000000",  # 1024 MB in units of 1024 bytes
        "train hard memlock 1000000",
    ]


def test_limits_stay_within_what_the_host_can_give() -> None:
    ceiling = {
        "nofile": limits.Ceiling(20000, "because"),
        "memlock": limits.Ceiling(8388608, "so"),
    }
    content, notes = limits.render_limits("train", 65536, "unlimited", ceiling)
    assert "train hard nofile 20000" in content
    assert "train hard memlock 8192" in content
    assert notes == [
        "the limit nofile of train stays at 20000 in place of 65536: because",
        "the limit memlock of train stays at 8388608 bytes in place of unlimited: so",
    ]
    content, notes = limits.render_limits("train", 20000, "8", ceiling)
    assert "train hard nofile 20000" in content
    assert notes == []


def test_what_a_container_may_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapBnd:\t00000000a80425fb\n")  # Docker's default
    assert not limits.may_raise_limits(str(status))
    status.write_text("Name:\tx\nCapBnd:\t000001ffffffffff\n")
    assert limits.may_raise_limits(str(status))
    shown = tmp_path / "limits"
    shown.write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 20000                files     \n"
        "Max locked memory         8388608              unlimited            bytes     \n"
    )
    first = limits.first_limits(str(shown))
    assert first == {"nofile": 20000, "memlock": resource.RLIM_INFINITY}
    monkeypatch.setattr(limits, "first_limits", lambda: first)
    monkeypatch.setattr(limits, "may_raise_limits", lambda: False)
    assert limits.ceilings()["nofile"].value == 20000
    assert "--ulimit nofile" in limits.ceilings()["nofile"].reason
    assert "memlock" not in limits.ceilings()
    monkeypatch.setattr(limits, "may_raise_limits", lambda: True)
    assert limits.ceilings()["nofile"].value == int(
        Path("/proc/sys/fs/nr_open").read_text(encoding="utf-8")
    )


def test_limits_file(
    host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ceilings", lambda: {"nofile": limits.Ceiling(10**6, "")})
    path = host / "train.conf"
    wanted: dict[str, Any] = {"path": str(path), "nofile": 2000, "memlock": ""}
    result = call(capsys, limits=wanted)
    assert result["differences"] == [f"{path} is not there"]
    path.write_text(result["limits_content"])
    path.chmod(0o644)
    root = pwd.getpwuid(path.stat().st_uid).pw_name == "root"
    assert call(capsys, limits=wanted)["ready"] == root
    changed = call(capsys, limits={**wanted, "nofile": 3000})
    assert f"{path} has another content" in changed["differences"]
    unwanted = call(capsys, limits={"path": str(path), "nofile": 0, "memlock": ""})
    assert unwanted["differences"] == [f"{path} is not wanted"]
    assert unwanted["limits_content"] == ""


def test_a_login_from_before_is_told(
    host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ceilings", lambda: {"nofile": limits.Ceiling(10**6, "")})
    monkeypatch.setattr(limits, "check_path", lambda *_, **__: [])
    has = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = {"path": "/etc/x.conf", "nofile": has + 1, "memlock": ""}
    result = call(capsys, limits=wanted)
    assert result["ready"]
    assert f"but this login has {has}" in result["notes"][0]
    assert "UsePAM yes" in result["notes"][0]
    assert call(capsys, limits={**wanted, "nofile": has})["notes"] == []


def test_a_wrong_limit_is_refused(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, limits={"path": "/etc/x.conf", "nofile": 0, "memlock": "lots"})
    assert result["failed"]
    assert "'lots'" in result["msg"]


# Mounts and shared memory


def test_mounts(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {"path": str(host), "src": "nas:/export", "fstype": "nfs", "opts": "hard,x-train.host"}
    result = call(capsys, mounts=[wanted])
    assert result["differences"] == [
        f"{host} is not in {host}/fstab as wanted",
        f"{host} is not mounted",
    ]
    (host / "fstab").write_text(f"nas:/export {host} nfs hard,x-train.host 0 0\n")
    (host / "mounts").write_text(f"systemd-1 {host} autofs rw 0 0\n")
    assert call(capsys, mounts=[wanted])["differences"] == [f"{host} is not mounted"]
    (host / "mounts").write_text(
        f"systemd-1 {host} autofs rw 0 0\nnas:/export/ {host} nfs4 rw 0 0\n"
    )
    assert call(capsys, mounts=[wanted])["ready"]
    (host / "mounts").write_text(f"other:/export {host} nfs4 rw 0 0\n")
    assert call(capsys, mounts=[wanted])["differences"] == [
        f"{host} is other:/export, not nas:/export"
    ]
    other = {**wanted, "opts": "soft,x-train.host"}
    assert "is not in" in call(capsys, mounts=[other])["differences"][0]


def test_a_mount_that_is_not_wanted_any_more(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (host / "fstab").write_text(
        "nas:/mine /mnt/mine nfs hard 0 0\n"
        "nas:/old /mnt/old\\040data nfs hard,x-train.host 0 0\n"
        "tmpfs /dev/shm tmpfs size=5,x-train.host 0 0\n"
    )
    assert call(capsys)["ready"]  # of a role that does not ask for mounts
    fstab = host / "fstab"
    assert call(capsys, mounts=[], shm_mb=1)["differences"] == [
        f"/mnt/old data is in {fstab}, but not wanted"
    ]
    assert len(call(capsys, mounts=[])["differences"]) == 2


def test_a_mount_that_does_not_answer(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = host / "stat"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{host}:{os.environ['PATH']}")
    began = time.monotonic()
    assert mounts.silent("/mnt/data", 0.2) == "does not answer within 0 s"
    assert time.monotonic() - began < 5
    fake.write_text(
        "#!/bin/sh\necho \"stat: cannot read '/mnt/x': Stale file handle\" >&2\nexit 1\n"
    )
    assert mounts.silent("/mnt/data") == "Stale file handle"
    (host / "fstab").write_text("nas:/export /mnt/data nfs hard 0 0\n")
    (host / "mounts").write_text("nas:/export /mnt/data nfs4 rw 0 0\n")
    wanted = {"path": "/mnt/data", "src": "nas:/export", "fstype": "nfs", "opts": "hard"}
    assert mounts.check_mount(wanted) == [
        "/mnt/data (nas:/export) is mounted, but broken: Stale file handle"
    ]


def test_shared_memory(
    host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "shm_size_mb", lambda: 64)
    assert call(capsys, shm_mb=64)["ready"]
    assert call(capsys, shm_mb=65)["differences"] == ["/dev/shm has 64 MB, not 65"]
    assert call(capsys)["notes"] == []
    monkeypatch.setattr(look, "NVIDIA_SIGN", sys.executable)
    monkeypatch.setattr(look, "check_limits", lambda *_: ("", [], []))
    notes = call(capsys, limits={"path": "x"})["notes"]
    assert "training_host_shm_size_mb" in notes[0]
