"""The texts of the files: rules in nft's language, units for systemd."""

from __future__ import annotations

from typing import Dict, List, Tuple

from . import places
from .nft import TABLE
from .wanted import Network

RULES_TEXT = """\
# Written by the role firewall. In one transaction, the table is replaced by this one.
table inet {table}
delete table inet {table}
table inet {table} {{
{sets}
\tchain input {{
\t\ttype filter hook input priority filter - 5; policy accept;
\t\tiifname "lo" accept
\t\tip saddr @members4 accept
\t\tip6 saddr @members6 accept
\t\t# Packets that open a connection; what is open stays open, and nothing is tracked.
\t\ttcp dport @ports tcp flags & (fin | syn | rst | ack) == syn counter reject with tcp reset
\t}}
}}
"""

UNIT_TEXT = """\
# Written by the role firewall.
[Unit]
Description=Connections to TensorFlow's ports from the cluster only
DefaultDependencies=no
Wants=network-pre.target
Before=network-pre.target shutdown.target
After=nftables.service
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={nft} -f {rules}
ExecReload={nft} -f {rules}
ExecStop=-{nft} delete table inet {table}

[Install]
WantedBy=sysinit.target
"""

DROP_IN_TEXT = """\
# Written by the role firewall. This service flushes all rules of the host, whoever made them, when
# it is started, reloaded or stopped: those for TensorFlow's ports are loaded again.
[Service]
ExecStartPost=-{nft} -f {rules}
ExecReload=-{nft} -f {rules}
ExecStopPost=-{nft} -f {rules}
"""


def set_text(name: str, kind: str, elements: List[str]) -> str:
    """Return a set in nft's language."""
    lines = ["\tset %s {" % name, "\t\ttype %s" % kind, "\t\tflags interval"]
    if elements:
        lines.append("\t\telements = {\n\t\t\t%s\n\t\t}" % ",\n\t\t\t".join(elements))
    return "\n".join([*lines, "\t}"])


def rules_text(networks: List[Network], ports: List[Tuple[int, int]]) -> str:
    """Return the file of the rules, the same for the same members and ports."""
    shown = {4: [], 6: []}  # type: Dict[int, List[str]]
    for network in networks:
        single = network.num_addresses == 1
        shown[network.version].append(str(network.network_address if single else network))
    numbers = ["%d" % a if a == b else "%d-%d" % (a, b) for a, b in ports]
    sets = [
        set_text("members4", "ipv4_addr", shown[4]),
        set_text("members6", "ipv6_addr", shown[6]),
        set_text("ports", "inet_service", numbers),
    ]
    return RULES_TEXT.format(table=TABLE, sets="\n".join(sets))


def unit_texts(nft: str) -> Dict[str, str]:
    """Return the files for systemd by path: the unit that loads the rules when the host starts."""
    names = {"nft": nft, "rules": places.RULES, "table": TABLE}
    return {
        places.UNIT_FILE: UNIT_TEXT.format(**names),
        places.DROP_IN_FILE: DROP_IN_TEXT.format(**names),
    }
