"""The filters of the role ``ssh_keys``: the records for all hosts, from the hosts' reports."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible.utils.display import Display
from ansible_collections.tensorflow_ansible.cluster.plugins.filter import ssh_keys as filters

NAME = "train-cluster"
Hosts = dict[str, dict[str, Any]]


def a_key(seed: str, kind: str = "ssh-ed25519", length: int = 32) -> str:
    body = (seed.encode() * length)[:length]
    blob = b"".join(len(text).to_bytes(4, "big") + text for text in (kind.encode(), body))
    return f"{kind} {base64.b64encode(blob).decode()}"


def a_report(name: str, user: str = "train", **changes: Any) -> dict[str, Any]:
    given = {"keys": [a_key(name)], "host_keys": [a_key(f"host of {name}")], "addresses": []}
    return filters.ssh_keys_report(user, **{**given, **changes})


@pytest.fixture
def hosts() -> Hosts:
    """Return the variables of three hosts that have reported."""
    return {
        name: {"ansible_host": f"10.0.0.{number}", "__ssh_keys_report": a_report(name)}
        for number, name in enumerate(["a", "b", "c"], 1)
    }


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of warnings that the filters print."""
    found: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda self, text: found.append(text))
    return found


def records(hosts: Hosts, *present: str) -> list[dict[str, Any]]:
    members = [{"name": name} for name in hosts]
    places = filters.ssh_keys_places(members, list(present or hosts), hosts)
    return filters.ssh_keys_records(places, list(present or hosts), hosts, NAME)


def files_of(hosts: Hosts) -> dict[str, Any]:
    """Return the files of a host that were written from the reports of ``hosts``."""
    found = records(hosts)
    authorized = [
        f'from="{",".join(r["sources"])}",restrict,pty {key} {NAME}:{r["user"]}@{r["names"][0]}\n'
        for r in found
        for key in r["keys"]
    ]
    known = [f"{','.join(r['known_as'])} {key}\n" for r in found for key in r["host_keys"]]
    return {
        "authorized_keys": "# mine\nssh-rsa AAAA me\n" + "".join(authorized),
        "known_hosts": "".join(known),
    }


def test_inventory_hosts_of_one_machine_are_its_names(hosts: Hosts) -> None:
    member: dict[str, Any] = {"name": "a", "names": ["a", "a2"], "address": "a.lab"}
    member |= {"ansible_host": "10.0.0.1", "ssh_port": 2222}
    hosts["a"]["ssh_keys_port"] = 22
    places = filters.ssh_keys_places([member], ["a"], hosts)
    (record,) = filters.ssh_keys_records(places, ["a"], hosts, NAME)
    assert record["names"] == ["a", "a2"]
    assert record["patterns"] == ["a", "a2", "a.lab"]
    assert record["known_as"] == ["a", "a2", "a.lab", "[10.0.0.1]:2222"]


@pytest.mark.parametrize("changes", [{}, {"ansible_port": 2222}, {"ssh_keys_address": "b.lab"}])
def test_a_host_that_takes_no_part_stays_as_others_know_it(hosts: Hosts, changes: Any) -> None:
    hosts["b"]["__ssh_keys_report"] = a_report("b", keys=[a_key("b"), a_key("b next")])
    hosts["b"].update(changes)
    before = records(hosts)
    hosts["a"]["__ssh_keys_kept"] = files_of(hosts)
    for name in ("b", "c"):
        hosts[name].pop("__ssh_keys_report")
    found = records(hosts, "a")
    for record in (*before, *found):
        record.pop("addresses")
    assert found == before
    hosts["a"].pop("__ssh_keys_kept")
    assert [record["names"] for record in records(hosts, "a")] == [["a"]]


def test_a_host_that_left_the_inventory_is_taken_out(hosts: Hosts) -> None:
    hosts["a"]["__ssh_keys_kept"] = files_of(hosts)
    del hosts["b"], hosts["c"]["__ssh_keys_report"]
    assert [record["names"] for record in records(hosts, "a")] == [["a"], ["c"]]


def test_the_files_of_most_hosts_count(hosts: Hosts, warnings: list[str]) -> None:
    hosts["d"] = {"ansible_host": "10.0.0.4", "__ssh_keys_report": a_report("d")}
    true = files_of(hosts)
    hosts["b"]["__ssh_keys_report"] = a_report("thief")
    false = files_of(hosts)
    del hosts["b"]["__ssh_keys_report"]
    unknown: dict[str, Any] = {"authorized_keys": "", "known_hosts": ""}

    def keys_of_b(*files: dict[str, Any]) -> list[str] | None:
        for name, its_files in zip("acd", files, strict=True):
            hosts[name]["__ssh_keys_kept"] = its_files
        found = {record["names"][0]: record["keys"] for record in records(hosts, "a", "c", "d")}
        assert {"a", "c", "d"} <= set(found)
        return found.get("b")

    for first, second, third in ((false, true, true), (true, false, true), (true, unknown, {})):
        assert keys_of_b(first, second, third) == [a_key("b")]
    assert warnings == []
    assert keys_of_b(true, false, unknown) is None
    assert keys_of_b(false, true, unknown) is None
    assert len(warnings) == 2
    assert warnings[0].startswith("b did not report its keys, and the files of a, c differ")
    assert keys_of_b(unknown, unknown, unknown) is None
    assert len(warnings) == 2


def test_hosts_differ_about_addresses_only_if_these_are_used(
    hosts: Hosts, warnings: list[str]
) -> None:
    new = files_of(hosts)
    old = {**new, "authorized_keys": new["authorized_keys"].replace("10.0.0.2", "10.0.0.9")}
    del hosts["b"]["__ssh_keys_report"]
    hosts["a"]["__ssh_keys_kept"], hosts["c"]["__ssh_keys_kept"] = new, old
    assert records(hosts, "a", "c")[1]["sources"] == ["10.0.0.2"]
    hosts["b"]["ansible_host"] = "b.lab"
    assert [record["names"] for record in records(hosts, "a", "c")] == [["a"], ["c"]]
    assert len(warnings) == 1


@pytest.mark.parametrize("source", ["*", "10.0.0.2,*.lab", "", "0.0.0.0/0"])
def test_an_entry_with_wrong_addresses_is_not_kept(hosts: Hosts, source: str) -> None:
    files = files_of(hosts)
    files["authorized_keys"] = files["authorized_keys"].replace("10.0.0.2", source)
    hosts["a"]["__ssh_keys_kept"] = files
    del hosts["b"]["__ssh_keys_report"]
    hosts["b"]["ansible_host"] = "b.lab"
    assert [record["names"] for record in records(hosts, "a")] == [["a"], ["c"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ansible_host": "10.0.0.2"}, "a and b have the same address, 10.0.0.2 port 22"),
        ({"ssh_keys_from": "10.0.0.1"}, "a: ssh_keys_from: .* use a list"),
        ({"ssh_keys_from": ['10.0.0.1" x']}, "a: ssh_keys_from: .* use a list"),
        ({"ssh_keys_address": "*"}, "ssh cannot use the host name"),
        ({"ssh_keys_address": "x\nProxyCommand y"}, "ssh cannot use the host name"),
        ({"ssh_keys_address": "localhost"}, "a: .* leads to a different machine on each host"),
    ],
)
def test_a_wrong_inventory_is_refused(hosts: Hosts, changes: dict[str, Any], message: str) -> None:
    hosts["a"].update(changes)
    with pytest.raises(AnsibleFilterError, match=message):
        records(hosts)


def test_a_host_that_is_no_member_is_named(hosts: Hosts) -> None:
    with pytest.raises(AnsibleFilterError, match="b: the host is not in ssh_keys_members"):
        filters.ssh_keys_places([{"name": "a"}], ["a", "b"], hosts)


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": [a_key("a") + "\nssh-ed25519 AAAA thief", 'command="x" ' + a_key("a")]},
        {"keys": ["ssh-ed25519 AAAA"]},
        {"keys": [a_key("a", "ssh-rsa", 300)]},
        {"host_keys": []},
        {"host_keys": ["@cert-authority * " + a_key("a")]},
        {"user": "train\n    ProxyCommand thief"},
    ],
)
def test_what_a_host_reports_is_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(AnsibleFilterError, match=r"cannot use this user or key|no public host key"):
        a_report("a", **changes)


def test_a_host_cannot_let_itself_in_from_anywhere(hosts: Hosts) -> None:
    thief = ["192.0.2.66", "0.0.0.0/0", '1.1.1.1",command="x', "127.0.0.1", "fe80::1"]
    hosts["b"]["__ssh_keys_report"] = a_report("b", addresses=thief)
    assert records(hosts)[1]["sources"] == ["10.0.0.2"], "the inventory has its address"
    # Only the host knows the addresses of its name, but it can report nothing except addresses.
    hosts["b"]["ansible_host"] = "b.lab"
    assert records(hosts)[1]["sources"] == ["192.0.2.66"]
    hosts["b"]["ssh_keys_from"] = ["10.9.0.0/16", "2001:db8::2"]
    assert records(hosts)[1]["sources"] == ["10.9.0.0/16", "192.0.2.66", "2001:db8::2"]
    hosts["c"]["ansible_host"] = "c.lab"
    with pytest.raises(AnsibleFilterError, match="c has no known address: set ssh_keys_from"):
        records(hosts)


def test_hosts_behind_one_gateway_do_not_share_its_address(hosts: Hosts) -> None:
    for number, name in enumerate(("a", "b"), 1):
        hosts[name].update(ansible_host="gateway", ansible_port=2201)
        hosts[name].update(ssh_keys_address=f"10.0.0.{number}", ssh_keys_port=22)
    assert records(hosts)[1]["known_as"] == ["b", "10.0.0.2"]
    hosts["b"]["ansible_port"] = 2202
    assert records(hosts)[1]["known_as"] == ["b", "10.0.0.2", "[gateway]:2202"]


def test_ranks_of_this_machine_need_no_keys() -> None:
    hosts: dict[str, Any] = {name: {"ansible_host": "localhost"} for name in ("one", "two")}
    assert filters.ssh_keys_places([], list(hosts), hosts) == {}
