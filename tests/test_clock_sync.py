"""The module of the role clock_sync: what it makes of chrony's files and of what chrony says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.host_roles import part

SYNCHRONISED = (
    "C0000201,192.0.2.1,11,1795255014.78,0.000020858,-0.00002,0.00002,0.0,-5.0,80.0,"
    "0.000065,0.000044,2.0,Normal"
)
LOST = "00000000,,0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised"
SAMPLE = "^,*,192.0.2.1,10,6,17,3,0.000002016,0.000006089,0.000030295"
DEBIAN = """\
# Use Debian vendor zone.
pool 2.debian.pool.ntp.org iburst
sourcedir /etc/chrony/sources.d
driftfile /var/lib/chrony/chrony.drift
confdir /etc/chrony/conf.d
"""
REDHAT = "pool 2.rocky.pool.ntp.org iburst\ndriftfile /var/lib/chrony/drift\n"
UNITS = """\
Id=chrony.service
LoadState=loaded
ActiveState={active}
UnitFileState={enabled}

Id=systemd-timesyncd.service
LoadState={loaded}
ActiveState=inactive
UnitFileState={timesyncd}

Id=ntp.service
LoadState=not-found
ActiveState=inactive
UnitFileState=
"""
RUNS = {"active": "active", "enabled": "enabled", "loaded": "not-found", "timesyncd": ""}
look, files, clock = (part(f"clock_setup.{name}") for name in ("look", "files", "clock"))
units, machine = part("clock_setup.units"), part("clock_setup.host")


def params(**given: Any) -> dict[str, Any]:
    wanted = {"state": "present", "servers": [], "pools": [], "serve": []}
    return {**wanted, "max_skew": 0.5, "timeout": 0.0, **given}


class Host:
    """A host of files in a folder, of which chrony and systemd say what they are told to."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.units = dict(RUNS)
        self.tracking, self.sources = SYNCHRONISED, SAMPLE
        self.status = "CapBnd:\t000001ffffffffff\n"
        self.write("/usr/sbin/chronyd", "")
        self.write("/etc/chrony/chrony.conf", DEBIAN)
        monkeypatch.setattr(look, "host_family", lambda: "debian")
        monkeypatch.setattr(look, "DAEMON", str(root / "usr/sbin/chronyd"))
        monkeypatch.setattr(look, "read", self.read)
        monkeypatch.setattr(clock, "chronyc", self.chronyc)
        monkeypatch.setattr(units, "subprocess", SimpleNamespace(run=self.run, PIPE=0, DEVNULL=0))

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path: str) -> str:
        if path.startswith("/proc"):
            return self.status
        file = self.root / path.lstrip("/")
        return file.read_text() if file.exists() else ""

    def chronyc(self, *arguments: str) -> str:
        return self.tracking if "tracking" in arguments else self.sources

    def run(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(stdout=UNITS.format(**self.units).encode())

    def converge(self, **wanted: Any) -> None:
        """Do what the role does."""
        state = look.look(params(**wanted))
        for file in [*state["files"], state["applied"]]:
            if file["text"]:
                self.write(file["path"], file["text"])
            else:
                (self.root / file["path"].lstrip("/")).unlink(missing_ok=True)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_a_host_that_was_set_up_is_ready(host: Host) -> None:
    before = look.look(params(servers=["192.0.2.1"]))
    assert not before["ready"]
    assert "clock" not in before
    host.converge(servers=["192.0.2.1"])
    after = look.look(params(servers=["192.0.2.1"]))
    assert after["differences"] == []
    assert after["clock"]["source"] == "192.0.2.1"
    assert after["clock"]["stratum"] == 11
    assert after["clock"]["offset"] == pytest.approx(0.000002016 - 0.000020858)


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ({"active": "inactive"}, "chrony does not run"),
        ({"active": "failed"}, "chrony does not run"),
        ({"enabled": "disabled"}, "chrony is not started with the host"),
        ({"loaded": "loaded", "timesyncd": "enabled"}, "systemd-timesyncd.service keeps time, too"),
    ],
)
def test_units_that_are_not_as_wanted(host: Host, unit: dict[str, str], said: str) -> None:
    host.converge()
    assert look.look(params())["ready"]
    host.units.update(unit)
    assert look.look(params())["differences"] == [said]


def test_a_disabled_daemon_may_stay_installed(host: Host) -> None:
    host.converge()
    host.units.update(loaded="loaded", timesyncd="disabled")
    assert look.look(params())["others"] == []


def test_files_changed_by_hand_are_seen(host: Host) -> None:
    host.converge(servers=["192.0.2.1"])
    host.write("/etc/chrony/chrony.conf", DEBIAN)
    assert look.look(params(servers=["192.0.2.1"]))["differences"] == [
        "/etc/chrony/chrony.conf has another content"
    ]


def test_a_run_cut_off_before_the_restart_is_seen(host: Host) -> None:
    host.converge(servers=["192.0.2.1"])
    (host.root / look.APPLIED.lstrip("/")).unlink()
    assert look.look(params(servers=["192.0.2.1"]))["differences"] == [
        "chrony was not started with the role's files"
    ]
    # A note of other files does not count.
    host.write(look.APPLIED, look.look(params(servers=["192.0.2.2"]))["applied"]["text"])
    assert not look.look(params(servers=["192.0.2.1"]))["ready"]


def test_removal_brings_the_distributions_file_back(host: Host) -> None:
    host.status = "CapBnd:\t00000000a82435fb\n"
    host.converge(servers=["192.0.2.1"], serve=["192.0.2.2"])
    assert not look.look(params(state="absent"))["ready"]
    host.converge(state="absent")
    assert host.read("/etc/chrony/chrony.conf") == DEBIAN
    assert sorted(str(path.relative_to(host.root)) for path in host.root.rglob("*.conf")) == [
        "etc/chrony/chrony.conf"
    ]
    assert look.look(params(state="absent"))["ready"]


def test_a_fresh_host_lacks_chrony(host: Host) -> None:
    (host.root / "etc/chrony/chrony.conf").unlink()
    state = look.look(params())
    assert (state["installed"], state["differences"]) == (False, ["chrony is not installed"])


def test_only_a_host_that_may_not_set_its_clock_gets_the_drop_in(host: Host) -> None:
    def drop_in() -> Any:
        return look.look(params())["files"][1]

    assert drop_in()["text"] == ""
    host.status = "Name:\tpython3\nCapBnd:\t00000000a82435fb\n"
    assert drop_in()["path"] == "/etc/systemd/system/chrony.service.d/clock_sync.conf"
    assert "chronyd" in drop_in()["text"]
    assert drop_in()["text"].endswith(" $DAEMON_OPTS -x\n")


@pytest.mark.parametrize(
    ("text", "own_sources", "folder", "expected"),
    [
        (DEBIAN, False, None, DEBIAN),
        (DEBIAN, True, "/etc/chrony/conf.d", DEBIAN.replace("pool 2", "#clock_sync# pool 2")),
        (
            "SERVER a\npoolside\n# server b\n",
            True,
            None,
            "#clock_sync# SERVER a\npoolside\n# server b\n",
        ),
        (
            REDHAT,
            True,
            "/etc/chrony.d",
            f"#clock_sync# {REDHAT}{files.ADDED}\nconfdir /etc/chrony.d\n",
        ),
        ("no end of line", False, None, "no end of line"),
    ],
)
def test_main_file(text: str, own_sources: bool, folder: str | None, expected: str) -> None:
    changed = files.main_text(text, own_sources, folder)
    assert changed == expected
    assert files.main_text(changed, own_sources, folder) == changed
    assert files.main_text(changed, False, None) == text


def test_own_file() -> None:
    assert files.own_text(params()) == ""
    assert files.own_text(params(servers=["a"], pools=["b"])).splitlines()[1:] == [
        "server a iburst",
        "pool b iburst",
    ]
    text = files.own_text(params(serve=["192.0.2.9", "192.0.2.2", "fd00::1", "10.0.0.0/8"]))
    assert "local stratum 10\n" in text
    assert [line for line in text.splitlines() if line.startswith("allow")] == [
        "allow 10.0.0.0/8",
        "allow 192.0.2.2",
        "allow 192.0.2.9",
        "allow fd00::1",
    ]


def test_loopback_needs_no_leave() -> None:
    assert files.resolve(["127.0.0.1", "::1", "192.0.2.1", "192.0.2.1"]) == ["192.0.2.1"]


def test_a_name_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise files.socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(files.socket, "getaddrinfo", fail)
    with pytest.raises(machine.HostError, match=r"cannot resolve node-3\.lab.*clock_sync_allow"):
        files.own_text(params(serve=["node-3.lab"]))


@pytest.mark.parametrize(
    ("tracking", "sources", "offset"),
    [
        # chrony corrects 5 s, of a clock that is behind.
        (
            SYNCHRONISED.replace("0.000020858", "5.000000000"),
            SAMPLE.replace("0.000002016", "0.0"),
            -5,
        ),
        # It may not step, and has corrected nothing yet.
        (SYNCHRONISED.replace("0.000020858", "0.0"), SAMPLE.replace("0.000002016", "-5.0"), -5),
        (SYNCHRONISED.replace("0.000020858", "-3.0"), SAMPLE.replace("0.000002016", "0.0"), 3),
        # What is not followed does not count.
        (
            SYNCHRONISED.replace("0.000020858", "0.0"),
            SAMPLE.replace("*", "x").replace("0.000002016", "9"),
            0,
        ),
    ],
)
def test_a_wrong_clock_is_named_with_its_skew(
    host: Host, tracking: str, sources: str, offset: float
) -> None:
    host.converge()
    host.tracking, host.sources = tracking, sources
    if abs(offset) < 0.5:
        assert look.look(params())["clock"]["offset"] == offset
        return
    side = "behind" if offset < 0 else "ahead of"
    with pytest.raises(clock.WrongClockError, match=f"{abs(offset)}.000 s {side} its source 192"):
        look.look(params())
    assert look.look(params(max_skew=6))["ready"]
    assert "clock" not in look.look(params(max_skew=0))


def test_the_limit_is_allowed() -> None:
    clock.judge({"source": "a", "offset": -0.5}, 0.5, True)
    with pytest.raises(clock.WrongClockError, match="makestep"):
        clock.judge({"source": "a", "offset": 0.501}, 0.5, True)
    with pytest.raises(clock.WrongClockError, match="CAP_SYS_TIME"):
        clock.judge({"source": "a", "offset": 0.501}, 0.5, False)


def test_the_source_of_a_cluster_follows_itself(host: Host) -> None:
    host.converge()
    host.tracking = "7F7F0101,,10,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,Normal"
    host.sources = ""
    assert look.look(params())["clock"] == {"source": "its own clock", "stratum": 10, "offset": 0}


def test_a_clock_without_a_source_is_told(host: Host) -> None:
    host.converge()
    host.tracking, host.sources = LOST, SAMPLE.replace("*", "?")
    with pytest.raises(
        clock.WrongClockError, match=r"no source after 0 s \(no use of 192\.0\.2\.1\)"
    ):
        look.look(params())
    host.tracking, host.sources = "506 Cannot talk to daemon", "506 Cannot talk to daemon"
    with pytest.raises(clock.WrongClockError, match="506 Cannot talk to daemon"):
        look.look(params())


def test_a_clock_that_finds_its_source_late_is_waited_for(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.converge()
    host.tracking = LOST
    monkeypatch.setattr(clock.time, "sleep", lambda _: setattr(host, "tracking", SYNCHRONISED))
    assert look.look(params(timeout=5.0))["clock"]["source"] == "192.0.2.1"


@pytest.mark.parametrize(
    ("systemd", "release", "expected"),
    [
        (True, "ID=debian", "debian"),
        (True, 'ID="rocky"\nID_LIKE="rhel centos fedora"', "redhat"),
        (True, "", "neither of Debian's nor of Red Hat's"),
        (False, "ID=debian", "no systemd runs"),
    ],
)
def test_family(tmp_path: Path, systemd: bool, release: str, expected: str) -> None:
    if systemd:
        (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(release)
    if expected in machine.FAMILIES:
        assert machine.host_family(str(tmp_path)) == expected
    else:
        with pytest.raises(machine.HostError, match=expected):
            machine.host_family(str(tmp_path))
