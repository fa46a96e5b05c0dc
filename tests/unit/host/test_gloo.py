"""The network interface that gloo needs on a host."""

from __future__ import annotations

import os
import shutil
import socket
import sys

import pytest

from tests.support.lab import run
from train.host import gloo

LOOPBACK = "127.0.0.1"


def test_no_interface_is_needed_among_ranks_of_one_machine() -> None:
    assert gloo.interface_toward([LOOPBACK, socket.gethostname()]) == ""
    assert gloo.interface_toward(["name.invalid"]) == ""
    assert gloo.interface_toward(["impossible..name", "n" * 64]) == ""


#: Two networks: the host's name belongs to the first one, and other ranks to the second.
NETWORKS = """
import socket, subprocess, sys
from train.host import gloo
for words in ("link set lo up", "link add one type veth peer name two",
              "addr add 10.1.0.1/24 dev one", "addr add 10.2.0.1/24 dev two",
              "link set one up", "link set two up"):
    subprocess.run(["ip", *words.split()], check=True)
for name in ("10.1.0.1", "127.0.1.1", "10.9.0.1"):
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    gloo.socket.getaddrinfo = lambda host, *rest, **more: found if host == "me" else real(
        host, *rest, **more)
    print(gloo.own_address(), *(gloo.interface_toward([peer]) or "-" for peer in sys.argv[1:]))
"""
PATCHED = "import socket; real = socket.getaddrinfo; socket.gethostname = lambda: 'me'\n"


@pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("unshare")),
    reason="needs root, ip and unshare",
)
def test_the_interface_toward_other_ranks_is_named_if_gloo_would_choose_another_one() -> None:
    peers = ("10.1.0.2", "10.2.0.2")
    done = run("unshare", "--net", sys.executable, "-c", PATCHED + NETWORKS, *peers)
    assert done.stdout.splitlines() == [
        "10.1.0.1 - two",
        "127.0.1.1 one two",
        # The name's address does not belong to the host.
        " one two",
    ], done.stderr
