"""The rules of the role ``firewall``: whom they let in, to which ports, and what nft lists."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from tests.firewall_role import nft, params, part, programs, rules

texts, wanted = part("texts"), part("wanted")


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
    assert wanted.parse_ports(texts) == expected


@pytest.mark.parametrize("text", ["0", "65536", "ssh", "", "7-3", "-5", "1-2-3", "12345; flush"])
def test_bad_ports_are_refused(text: str) -> None:
    with pytest.raises(programs.FirewallError, match="use a number from 1 to 65535"):
        wanted.parse_ports([text])


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    known: dict[str, list[str]] = {}

    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        if name not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in known[name]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


def found(members: list[list[str]], sources: list[str]) -> list[str]:
    return [str(network) for network in wanted.find_members(members, sources)]


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
    with pytest.raises(programs.FirewallError, match=r"resolve a or b, c: set train_job_address"):
        found([["a", "b"], ["192.0.2.1"], ["c"]], [])
    with pytest.raises(
        programs.FirewallError, match=r"resolve 10\.9\.9\.9/33: correct firewall_ex"
    ):
        found([["192.0.2.1"]], ["10.9.9.9/33"])


def test_the_order_of_members_does_not_change_the_rules() -> None:
    members = [[f"10.0.{number // 250}.{1 + number % 250}"] for number in range(0, 600, 2)]
    first = rules.Firewall(params(members=members, ports=["2", "1"])).rules
    assert rules.Firewall(params(members=members[::-1], ports=["1", "2"])).rules == first
    # Hundreds of hosts are one set, not a rule each.
    assert first.count(" accept\n") == 3
    assert first.count(",\n") == 299


def test_rules_are_one_transaction_that_touches_one_table() -> None:
    text = rules.Firewall(params(members=[["192.0.2.1"], ["fd00::1"]])).rules
    commands = [line for line in text.splitlines() if line and line[0] not in "\t#}"]
    assert commands == ["table inet train", "delete table inet train", "table inet train {"]
    assert "flush" not in text
    assert "policy accept" in text
    assert "192.0.2.1\n" in text.partition("members6")[0]
    assert "fd00::1\n" in text.partition("members6")[2]


def test_without_elements_a_set_is_empty() -> None:
    assert "elements" not in texts.set_text("members6", "ipv6_addr", [])


def test_a_listing_is_the_same_after_traffic_and_loading() -> None:
    def listing(handle: int, packets: int, right: str = "@ports") -> str:
        rule = {"match": {"right": right}}
        counter = {"counter": {"packets": packets, "bytes": 60 * packets}}
        entries = [
            {"metainfo": {"version": "1.0.6"}},
            {"rule": {"handle": handle, "expr": [rule, counter]}},
        ]
        return json.dumps({"nftables": entries})

    assert nft.listed_hash(listing(1, 0)) == nft.listed_hash(listing(7, 12))
    assert nft.listed_hash(listing(1, 0)) != nft.listed_hash(listing(1, 0, "@others"))


def test_other_tables_that_refuse_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(table: str, policy: str, hook: str = "input") -> dict[str, Any]:
        return {"chain": {"family": "ip", "table": table, "policy": policy, "hook": hook}}

    listed = [
        *(chain("filter", "drop"), chain("firewalld", "accept"), chain("harmless", "accept")),
        *(chain("docker", "drop", "forward"), chain("train", "drop"), {"chain": {"table": "jump"}}),
    ]
    answer = SimpleNamespace(returncode=0, stdout=json.dumps({"nftables": listed}))
    monkeypatch.setattr(nft, "run", lambda *_, **__: answer)
    told = nft.warnings_of("nft")
    assert [text.split()[:4] for text in told] == [
        ["the", "table", "ip", "filter"],
        ["the", "table", "ip", "firewalld"],
    ]


def test_nft_that_cannot_tell_is_not_an_absent_table(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(returncode=1, stdout="", stderr="Operation not permitted")
    monkeypatch.setattr(nft, "run", lambda *_, **__: answer)
    with pytest.raises(programs.FirewallError, match=r"Operation not permitted\. .*NET_ADMIN"):
        nft.list_table("nft")
