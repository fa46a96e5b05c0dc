"""The rules of the role ``firewall`` against raw packets, in two network namespaces."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.tensorflow_ansible.cluster.plugins.module_utils.firewall_setup import rules

from tests.support import packets
from tests.support.bare_ranks import wait_until
from tests.support.namespaces import MEMBER, PORT, RAW_MEMBER, RAW_STRANGER, STRANGER, TARGET, Cable
from tests.support.namespaces import cable as cable
from tests.support.packets import ACK, CWR, ECE, FIN, PSH, RST, SYN, URG

DELIVERIES = [(6, name) for name in packets.V6] + [(4, name) for name in packets.V4]
#: Deliveries that any Linux accepts. Others only show that no kernel lets strangers connect.
ACCEPTED = [
    *((6, name) for name in ("plain", "between_options", "backwards", "routing_header")),
    *((6, name) for name in ("other_protocol_later", "atomic", "many_options", "far")),
    *((4, name) for name in ("plain", "within_tcp", "ip_options")),
]
#: An operator's table that makes the kernel track connections and join fragments before the rules.
TRACKING = "table inet own { chain in { type filter hook input priority 0; ct state new; }; }\n"

#: Sends 4,000 bytes as a datagram and as an echo request, and prints the sizes of the answers.
LARGE = """
import socket, struct, sys
source, target, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
v6 = ":" in source
family, protocol = (socket.AF_INET6, 58) if v6 else (socket.AF_INET, 1)
with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
    datagrams.settimeout(5)
    datagrams.bind((source, 0))
    datagrams.sendto(bytes(4000), (target, port))
    print(datagrams.recv(100).decode())
with socket.socket(family, socket.SOCK_RAW, protocol) as echoes:
    echoes.settimeout(5)
    echoes.bind((source, 0))
    kind, answer = (128, 129) if v6 else (8, 0)
    # The kernel adds ICMPv6's checksum. Without payload but zeros, ICMP's is plain.
    header = struct.pack("!BBHHH", kind, 0, 0 if v6 else 0xFFFF - (kind << 8) - 1, 1, 0)
    echoes.sendto(header + bytes(3992), (target, 0))
    while True:
        got = echoes.recv(65536)[0 if v6 else 20:]
        if got[0] == answer:
            print(len(got))
            break
"""


def members() -> str:
    """Return rules with one member that has two addresses."""
    addresses = [text for both in (MEMBER, RAW_MEMBER) for text in both.values()]
    found = rules.find_networks([[text] for text in addresses], [])
    text: str = rules.rules_text(found, [(PORT, PORT)])
    return text


@pytest.fixture(scope="module", params=["", TRACKING], ids=["untracked", "tracked"])
def guarded(request: pytest.FixtureRequest, cable: Cable) -> Cable:
    """Load the role's rules on the target, alone or next to a table that tracks connections."""
    cable.load(members() + request.param)
    return cable


def assert_closed(cable: Cable, version: int, *packet: Any) -> str:
    """Assert that a stranger opens no connection and no data arrives; return the answer."""
    before = cable.received.read_text()
    answer = cable.connect(version, RAW_STRANGER[version], *packet)
    assert answer != packets.OPEN
    assert cable.received.read_text()[len(before) :].count(RAW_STRANGER[version]) == 0
    return answer


@pytest.mark.parametrize(("version", "delivery"), DELIVERIES)
def test_no_form_of_a_connection_passes(guarded: Cable, version: int, delivery: str) -> None:
    if (version, delivery) in ACCEPTED:
        assert guarded.connect(version, RAW_MEMBER[version], delivery) == packets.OPEN
    assert_closed(guarded, version, delivery)


@pytest.mark.parametrize(
    ("flags", "opens"),
    [
        *((SYN | more, True) for more in (ECE | CWR, PSH, URG, ECE | CWR | PSH | URG)),
        *((flags, False) for flags in (0, FIN, SYN | FIN, SYN | RST, ACK, ACK | PSH, SYN | ACK)),
        (0xFF, False),
    ],
)
def test_no_flags_open_a_connection(guarded: Cable, flags: int, opens: bool) -> None:
    for version in (4, 6):
        answer = guarded.connect(version, RAW_MEMBER[version], "plain", flags)
        assert (answer == packets.OPEN) == opens
        answer = assert_closed(guarded, version, "plain", flags)
        assert not opens or answer == packets.REFUSED


@pytest.mark.parametrize("version", [4, 6])
def test_large_datagrams_and_echoes_of_everyone_pass(guarded: Cable, version: int) -> None:
    for source in (MEMBER[version], STRANGER[version]):
        sizes = guarded.python("-c", LARGE, source, TARGET[version], str(PORT))
        assert sizes.split() == ["4000", "4000"]


def test_without_the_rules_everyone_connects(cable: Cable) -> None:
    """The packets of the other tests are valid. This is the last test, as it removes the rules."""
    cable.load("")
    for version, delivery in ACCEPTED:
        assert cable.connect(version, RAW_STRANGER[version], delivery) == packets.OPEN
    wait_until(lambda: "far with 2" in cable.received.read_text(), "the data")
