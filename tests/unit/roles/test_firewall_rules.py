"""The rules of the role ``firewall``, and the openings of other firewalls."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from ansible_collections.tensorflow_ansible.cluster.plugins.module_utils.firewall_setup import (
    others,
    rules,
)


def test_ports() -> None:
    given: list[Any] = ["1-3", "4", "2-7", "9 - 10", 12345]
    parsed = rules.parse_ports(given)
    assert parsed == [(1, 7), (9, 10), (12345, 12345)]
    for text in (
        "0",
        "65536",
        "ssh",
        "",
        "7-3",
        "-5",
        "1-2-3",
        "12345; flush",
        "²",
        "٣",
        "1_0",
        "+5",
    ):
        with pytest.raises(rules.FirewallError, match="use a number from 1 to 65535"):
            rules.parse_ports([text])


def test_members_by_name_and_address(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"node-1": ["192.0.2.1", "fd00::1"], "localhost": ["127.0.0.1", "::1"]}

    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        if name not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in known[name]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    members = [["alias", "node-1"], ["10.0.0.6"], ["10.0.0.7"], ["localhost"]]
    networks = rules.find_networks(members, ["198.51.100.7/24", "198.51.100.9", "fe80::2%eth0"])
    # nft rejects a set with overlapping elements.
    v4, v6 = ["10.0.0.6/31", "192.0.2.1", "198.51.100.0/24"], ["fd00::1", "fe80::2"]
    assert [rules.show(network) for network in networks] == v4 + v6
    text = rules.rules_text(networks, [(12345, 12345)])
    assert all(address in text.partition("members6")[0] for address in v4)
    assert all(address in text.partition("members6")[2] for address in v6)
    for members, sources, message in (
        ([["a", "b"], ["c"]], [], r"resolve a or b, c: use a name"),
        ([], ["10.9.9.9/33"], r"resolve 10\.9\.9\.9/33: correct firewall_extra_sources"),
    ):
        with pytest.raises(rules.FirewallError, match=message):
            rules.find_networks(members, sources)


@pytest.mark.parametrize(
    ("rule", "opens"),
    [
        ("ip saddr 10.0.0.0/8 accept", True),
        ("ip saddr { 10.0.0.5, 10.0.0.6 } counter packets 1 bytes 2 accept", True),
        ("meta l4proto tcp tcp dport 20000-30000 counter packets 0 bytes 0 accept", True),
        ("tcp dport { 22, 20005 } accept", True),
        ("ip saddr 10.0.0.5 tcp dport 22 accept", False),
        ("ip saddr @trusted accept", False),
        ("-A INPUT -s 10.0.0.5/32 -j ACCEPT", True),
        ("-A INPUT -p tcp -m tcp --dport 20000:20010 -j ACCEPT", True),
        ("-A INPUT -s 10.0.0.6/32 -j ACCEPT", False),
    ],
)
def test_what_another_chain_lets_in(rule: str, opens: bool) -> None:
    pattern = others.LEGACY_RULE if rule.startswith("-A") else others.NFT_RULE
    openings = others.parse_rules(pattern, [rule])
    network = rules.parse_network("10.0.0.5")
    assert network is not None
    assert others.allows(openings, network, [(20005, 20005)]) == opens
