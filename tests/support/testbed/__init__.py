"""Docker containers that stand in for SSH hosts in tests, drills and benchmarks.

A test bed is a folder on this machine, a Docker network of its own and N containers ``host-0``,
``host-1``, ... on it, each with its sshd and the user ``train``. The hosts are of one Debian
release or of several, and run sshd alone, which is fast, or systemd. The folder holds:

=======================  ==================================================================
``id_ed25519``           the private key of ``train``, and ``id_ed25519.pub``
``known_hosts``          the host keys, read through Docker and not through SSH
``hosts.json``           a list of objects with ``name``, ``address`` and ``container``
``stranger.json``        one such object, where a stranger was asked for
``testbed``              marks the folder: only where it is, `down` removes the files above
``inventory/``           for Ansible: all hosts in the group ``worker``
=======================  ==================================================================

The stranger is a container of the same network that is in neither ``hosts.json`` nor the
inventory: from it, a test tries what only members of a cluster may do. Containers and network
carry the folder's path as a label, by which they are found again. The control node must reach the
containers' addresses, as it does where Docker runs on Linux.

``python -m tests.support.testbed`` starts and removes that of Molecule.
"""

from tests.support.testbed.bed import HOME as HOME
from tests.support.testbed.bed import Host as Host
from tests.support.testbed.bed import Rank as Rank
from tests.support.testbed.bed import Testbed as Testbed
from tests.support.testbed.bed import down as down
from tests.support.testbed.bed import running_testbed as running_testbed
from tests.support.testbed.bed import wait_for_systemd as wait_for_systemd
from tests.support.testbed.engine import BOOKWORM as BOOKWORM
from tests.support.testbed.engine import TRIXIE as TRIXIE
from tests.support.testbed.engine import TestbedError as TestbedError
from tests.support.testbed.engine import docker as docker
from tests.support.testbed.engine import docker_available as docker_available
