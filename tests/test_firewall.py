"""The role firewall: who is let in, what is loaded, and what happens to rules that lock one out."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError

ROLE = Path(__file__).resolve().parents[1] / "roles" / "firewall"
PATHS = ("FOLDER", "RULES", "PENDING", "LISTED", "UNIT_FILE", "ENABLED", "DROP_IN_FILE")


def load(folder: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{folder}_{name}", ROLE / folder / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


firewall = load("library", "firewall")
action = load("action_plugins", "firewall")
planner = load("action_plugins", "firewall_plan")


def params(**given: Any) -> dict[str, Any]:
    wanted = {"members": [["192.0.2.1"], ["192.0.2.7"]], "sources": [], "ports": ["12345"]}
    return {**wanted, "confirm_timeout": 30, **given}


class Host:
    """A host's nft and systemd: a table is the text that was loaded, the guard is fired by hand."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded = ""
        self.guard = ""
        self.calls: list[tuple[str, ...]] = []
        self.refuse_rules = False
        for name in PATHS:
            path = getattr(firewall, name)
            monkeypatch.setattr(firewall, name, str(root / path.lstrip("/")))
        monkeypatch.setattr(firewall, "run", self.run)
        monkeypatch.setattr(firewall.shutil, "which", lambda *_, **__: "/usr/sbin/nft")
        isdir = firewall.os.path.isdir
        monkeypatch.setattr(
            firewall.os.path, "isdir", lambda path: path == "/run/systemd/system" or isdir(path)
        )

    def run(self, *arguments: str, check: bool = True) -> Any:
        self.calls.append(arguments)
        code, out, error = 0, "", ""
        match arguments:
            case ("/usr/sbin/nft", "-j", "list", "table", *_):
                out = json.dumps({"nftables": [{"set": {"handle": len(self.calls)}}, self.loaded]})
                if not self.loaded:
                    code, error = 1, "Error: No such file or directory"
            case ("/usr/sbin/nft", "--check", *_) if self.refuse_rules:
                raise firewall.FirewallError("syntax error")
            case ("/usr/sbin/nft", "--file", path):
                assert self.guard, "rules were loaded without a guard"
                self.loaded = Path(path).read_text()
            case ("/usr/sbin/nft", "delete", *_):
                self.loaded = ""
            case ("systemctl", "enable", *_):
                Path(firewall.ENABLED).parent.mkdir(parents=True, exist_ok=True)
                if not Path(firewall.ENABLED).is_symlink():
                    Path(firewall.ENABLED).symlink_to(firewall.UNIT_FILE)
            case ("systemctl", "disable", *_):
                Path(firewall.ENABLED).unlink()
            case ("systemctl", "reload-or-restart", firewall.UNIT):
                self.loaded = Path(firewall.RULES).read_text()
            case ("systemctl", "stop", unit) if unit.endswith(".timer"):
                self.guard = ""
            case ("systemd-run", *_, command):
                self.guard = command
        return SimpleNamespace(returncode=code, stdout=out, stderr=error)

    def fire(self) -> None:
        """What the guard does, of which /bin/sh is left out."""
        rules = Path(firewall.RULES)
        self.loaded = rules.read_text() if rules.exists() else ""
        Path(firewall.PENDING).unlink()
        self.guard = ""

    def set_up(self, **given: Any) -> None:
        assert firewall.Firewall(params(**given)).apply(dry=False)["changed"]
        firewall.Firewall(params(**given)).confirm()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], []),
        (["12345"], [(12345, 12345)]),
        (["23456", "12345", "12345"], [(12345, 12345), (23456, 23456)]),
        (["1-3", "4", "2-7", "9 - 10"], [(1, 7), (9, 10)]),
        (["1-65535", "22"], [(1, 65535)]),
    ],
)
def test_ports(texts: list[str], expected: list[tuple[int, int]]) -> None:
    assert firewall.parse_ports(texts) == expected


@pytest.mark.parametrize("text", ["0", "65536", "ssh", "", "7-3", "-5", "1-2-3", "12345; flush"])
def test_bad_ports_are_refused(text: str) -> None:
    with pytest.raises(firewall.FirewallError, match="use a number from 1 to 65535"):
        firewall.parse_ports([text])


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    known: dict[str, list[str]] = {}

    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        if name not in known:
            raise firewall.socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in known[name]]

    monkeypatch.setattr(firewall.socket, "getaddrinfo", getaddrinfo)
    return known


def found(members: list[list[str]], sources: list[str]) -> list[str]:
    return [str(network) for network in firewall.find_members(members, sources)]


def test_members_by_name_and_address(names: dict[str, list[str]]) -> None:
    names["node-1"] = ["192.0.2.1", "fd00::1"]
    names["localhost"] = ["127.0.0.1", "::1"]
    assert found(
        [["node-1"], ["192.0.2.9"], ["localhost"]], ["198.51.100.7/24", "fe80::2%eth0"]
    ) == [
        "192.0.2.1/32",
        "192.0.2.9/32",
        "198.51.100.0/24",
        "fd00::1/128",
        "fe80::2/128",
    ]


def test_networks_do_not_overlap(names: dict[str, list[str]]) -> None:
    # nft refuses a set with overlapping elements.
    assert found([["10.0.0.5"], ["10.0.0.6"], ["10.0.0.7"]], ["10.1.0.0/16", "10.1.2.3"]) == [
        "10.0.0.5/32",
        "10.0.0.6/31",
        "10.1.0.0/16",
    ]


def test_one_known_name_of_a_member_is_enough(names: dict[str, list[str]]) -> None:
    assert found([["alias-of-the-control-node", "192.0.2.1"]], []) == ["192.0.2.1/32"]
    with pytest.raises(firewall.FirewallError, match=r"resolve a or b, c: set train_job_address"):
        found([["a", "b"], ["192.0.2.1"], ["c"]], [])
    with pytest.raises(
        firewall.FirewallError, match=r"resolve 10\.9\.9\.9/33: correct firewall_ex"
    ):
        found([["192.0.2.1"]], ["10.9.9.9/33"])


def test_the_order_of_members_does_not_change_the_rules() -> None:
    members = [[f"10.0.{number // 250}.{1 + number % 250}"] for number in range(0, 600, 2)]
    first = firewall.Firewall(params(members=members, ports=["2", "1"])).rules
    assert firewall.Firewall(params(members=members[::-1], ports=["1", "2"])).rules == first
    # Hundreds of hosts are one set, not a rule each.
    assert first.count(" accept\n") == 3
    assert first.count(",\n") == 299


def test_rules_are_one_transaction_that_touches_one_table() -> None:
    text = firewall.Firewall(params(members=[["192.0.2.1"], ["fd00::1"]])).rules
    commands = [line for line in text.splitlines() if line and line[0] not in "\t#}"]
    assert commands == ["table inet train", "delete table inet train", "table inet train {"]
    assert "flush" not in text
    assert "policy accept" in text
    assert "192.0.2.1\n" in text.partition("members6")[0]
    assert "fd00::1\n" in text.partition("members6")[2]


def test_without_elements_a_set_is_empty() -> None:
    assert "elements" not in firewall.set_text("members6", "ipv6_addr", [])


def test_a_listing_is_the_same_after_traffic_and_loading() -> None:
    def listing(handle: int, packets: int, right: str = "@ports") -> str:
        rule = {"match": {"right": right}}
        counter = {"counter": {"packets": packets, "bytes": 60 * packets}}
        entries = [
            {"metainfo": {"version": "1.0.6"}},
            {"rule": {"handle": handle, "expr": [rule, counter]}},
        ]
        return json.dumps({"nftables": entries})

    assert firewall.listed_hash(listing(1, 0)) == firewall.listed_hash(listing(7, 12))
    assert firewall.listed_hash(listing(1, 0)) != firewall.listed_hash(listing(1, 0, "@others"))


def test_set_up_once(host: Host) -> None:
    first = firewall.Firewall(params()).look()
    assert first["differences"][0] == "the table inet train is not loaded"
    host.set_up()
    assert firewall.Firewall(params()).look()["differences"] == []
    assert host.loaded == Path(firewall.RULES).read_text()
    assert host.guard == ""
    host.calls.clear()
    assert not firewall.Firewall(params()).apply(dry=False)["changed"]
    assert len(host.calls) == 1


def test_a_new_member_changes_the_rules(host: Host) -> None:
    host.set_up()
    wanted = params(members=[["192.0.2.1"], ["192.0.2.8"]])
    result = firewall.Firewall(wanted).apply(dry=True)
    assert result["differences"] == [f"{firewall.RULES} has other rules"]
    assert "192.0.2.7" in result["diff"]["before"]
    assert "192.0.2.8" in result["diff"]["after"]
    assert "192.0.2.8" not in host.loaded
    host.set_up(members=wanted["members"])
    assert "192.0.2.8" in host.loaded


def test_check_mode_changes_nothing(host: Host, tmp_path: Path) -> None:
    assert firewall.Firewall(params()).apply(dry=True)["changed"]
    assert list(tmp_path.iterdir()) == []
    assert {call[:2] for call in host.calls} == {("/usr/sbin/nft", "-j")}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda host: setattr(host, "loaded", ""), "not loaded"),
        (
            lambda host: setattr(host, "loaded", host.loaded + "accept"),
            "not the one that was confirm",
        ),
        (lambda _: Path(firewall.RULES).write_text("table inet train\n"), "has other rules"),
        (lambda _: Path(firewall.UNIT_FILE).unlink(), "train-firewall.service has another content"),
        (lambda _: Path(firewall.DROP_IN_FILE).unlink(), "train-firewall.conf has another content"),
        (lambda _: Path(firewall.ENABLED).unlink(), "is not enabled"),
        (lambda _: Path(firewall.LISTED).unlink(), "not the one that was confirmed"),
    ],
)
def test_damage_is_seen(host: Host, damage: Callable[[Host], None], said: str) -> None:
    host.set_up()
    damage(host)
    differences = firewall.Firewall(params()).look()["differences"]
    assert len(differences) == 1
    assert said in differences[0]


@pytest.mark.parametrize("before", [True, False])
def test_rules_that_were_taken_back_are_not_kept(host: Host, before: bool) -> None:
    if before:
        host.set_up()
    former = host.loaded
    locking = params(ports=["22"])
    firewall.Firewall(locking).apply(dry=False)
    assert "22\n" in host.loaded
    host.fire()
    with pytest.raises(firewall.FirewallError, match="taken back after 30 s"):
        firewall.Firewall(locking).confirm()
    assert host.loaded == former
    assert Path(firewall.RULES).exists() == before
    assert firewall.Firewall(params()).look()["ready"] == before


def test_rules_that_nft_refuses_are_not_loaded(host: Host) -> None:
    host.set_up()
    former = host.loaded
    host.refuse_rules = True
    with pytest.raises(firewall.FirewallError, match="syntax error"):
        firewall.Firewall(params(ports=["1"])).apply(dry=False)
    assert (host.loaded, host.guard) == (former, "")
    assert firewall.Firewall(params()).look()["ready"]


def test_a_guard_of_an_aborted_run_does_not_take_the_next_rules_back(host: Host) -> None:
    firewall.Firewall(params(ports=["1"])).apply(dry=False)
    host.calls.clear()
    firewall.Firewall(params()).apply(dry=False)
    order = [call[0] + " " + call[1] for call in host.calls if call[0].startswith("system")]
    assert order.index("systemctl stop") < order.index("systemd-run --quiet")


def test_the_guard_loads_what_was_confirmed_or_deletes_the_table(host: Host) -> None:
    firewall.Firewall(params(confirm_timeout=7)).apply(dry=False)
    command = next(call for call in host.calls if call[0] == "systemd-run")
    assert "--on-active=7s" in command
    assert f"then /usr/sbin/nft -f {firewall.RULES}; else" in command[-1]
    assert "delete table inet train" in command[-1]


def test_removal_leaves_nothing(host: Host, tmp_path: Path) -> None:
    host.set_up()
    assert firewall.remove_all(dry=True)["changed"]
    assert host.loaded
    assert firewall.remove_all(dry=False)["changed"]
    assert host.loaded == ""
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert not firewall.remove_all(dry=False)["changed"]


def test_other_tables_that_refuse_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(table: str, policy: str, hook: str = "input") -> dict[str, Any]:
        return {"chain": {"family": "ip", "table": table, "policy": policy, "hook": hook}}

    listed = [
        *(chain("filter", "drop"), chain("firewalld", "accept"), chain("harmless", "accept")),
        *(chain("docker", "drop", "forward"), chain("train", "drop"), {"chain": {"table": "jump"}}),
    ]
    answer = SimpleNamespace(returncode=0, stdout=json.dumps({"nftables": listed}))
    monkeypatch.setattr(firewall, "run", lambda *_, **__: answer)
    told = firewall.warnings_of("nft")
    assert [text.split()[:4] for text in told] == [
        ["the", "table", "ip", "filter"],
        ["the", "table", "ip", "firewalld"],
    ]


def test_nft_that_cannot_tell_is_not_an_absent_table(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(returncode=1, stdout="", stderr="Operation not permitted")
    monkeypatch.setattr(firewall, "run", lambda *_, **__: answer)
    with pytest.raises(firewall.FirewallError, match=r"Operation not permitted\. .*NET_ADMIN"):
        firewall.list_table("nft")


class Plugin(action.ActionModule):  # type: ignore[misc,name-defined]
    """The plugin on a host that fails to answer some times and then confirms, or does not."""

    def __init__(self, refusals: int, confirmed: dict[str, Any], check: bool = False) -> None:
        self.resets = 0
        self.states: list[str] = []
        self.refusals, self.confirmed = refusals, confirmed
        self._connection = SimpleNamespace(reset=self.count_reset)
        self._task = SimpleNamespace(args={**params(), "state": "present"}, check_mode=check)

    def count_reset(self) -> None:
        self.resets += 1

    def _call(self, args: dict[str, Any], _: Any) -> dict[str, Any]:
        self.states.append(args["state"])
        if args["state"] == "applied":
            return {"changed": True, "differences": ["other rules"]}
        self.refusals -= 1
        if self.refusals >= 0:
            raise AnsibleConnectionFailure("Connection refused")
        return self.confirmed


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action.ActionBase, "run", lambda *_: None)
    monkeypatch.setattr(action.time, "sleep", lambda _: None)


@pytest.mark.usefixtures("at_once")
def test_rules_are_confirmed_over_a_new_connection() -> None:
    plugin = Plugin(0, {"changed": True, "ready": True})
    assert plugin.run() == {"changed": True, "ready": True, "differences": ["other rules"]}
    assert (plugin.resets, plugin.states) == (1, ["applied", "confirmed"])


@pytest.mark.usefixtures("at_once")
def test_check_mode_confirms_nothing() -> None:
    plugin = Plugin(0, {}, check=True)
    assert plugin.run()["changed"]
    assert (plugin.resets, plugin.states) == (0, ["applied"])


@pytest.mark.usefixtures("at_once")
def test_a_lock_out_is_told_with_its_remedy() -> None:
    plugin = Plugin(3, {"failed": True, "msg": "the new rules were taken back"})
    result = plugin.run()
    assert result["failed"]
    assert result["msg"].startswith(
        "the new rules were taken back. Ansible was told: Connection re"
    )
    assert "firewall_extra_sources" in result["msg"]
    assert plugin.resets == 4


@pytest.mark.usefixtures("at_once")
def test_a_host_that_stays_away_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(action.time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(AnsibleConnectionFailure):
        Plugin(1000, {}).run()


def test_plan() -> None:
    hosts = {
        "node-1": {"ansible_host": "192.0.2.1", "train_job_address": "10.0.0.1"},
        "node-1-ps": {
            "ansible_host": "192.0.2.1",
            "train_job_address": "10.0.0.1",
            "train_job_port": 12346,
        },
        "node-2": {"train_job_port": "23456"},
        "here": {"ansible_connection": "local", "ansible_host": "localhost"},
        "stranger": {"ansible_host": "192.0.2.9"},
    }
    plan = planner.plan(["node-1", "node-1-ps", "node-2", "here"], hosts, 12345)
    assert plan == {
        "members": [["10.0.0.1", "192.0.2.1"], ["node-2"]],
        "ports": {
            "node-1": ["12345", "12346"],
            "node-1-ps": ["12345", "12346"],
            "node-2": ["23456"],
            "here": ["12345"],
        },
    }


def test_machines_behind_one_address_are_told_apart() -> None:
    hosts = {
        "a": {"ansible_host": "192.0.2.1", "ansible_port": 2201},
        "b": {"ansible_host": "192.0.2.1", "ansible_port": 2202, "train_job_port": 23456},
    }
    assert planner.plan(["a", "b"], hosts, 12345)["ports"] == {"a": ["12345"], "b": ["23456"]}


def test_a_variable_that_cannot_be_read_names_its_host() -> None:
    class Broken(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            raise AnsibleError("'lab_address' is undefined")

    with pytest.raises(AnsibleActionFail, match="node-1: 'lab_address' is undefined"):
        planner.plan(["node-1"], {"node-1": Broken()}, 12345)
