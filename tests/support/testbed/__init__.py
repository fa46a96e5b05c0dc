"""Docker containers that act as SSH hosts in tests, drills and benchmarks.

A test bed is a folder on this machine, a separate Docker network and N containers ``host-0``,
``host-1``, ... on it, each with its sshd and the user ``train``. The hosts have one Debian release
or several, and run only sshd, which is fast, or systemd. The folder contains:

=======================  ==================================================================
``id_ed25519``           the private key of ``train``, and ``id_ed25519.pub``
``known_hosts``          the host keys, read through Docker and not through SSH
``hosts.json``           a list of objects with ``name``, ``address`` and ``container``
``stranger.json``        one such object, if a stranger was requested
``testbed``              marks the folder: `down` removes the files above only next to it
``inventory/``           for Ansible: all hosts in the group ``worker``
=======================  ==================================================================

The stranger is a container on the same network that is in neither ``hosts.json`` nor the inventory.
Tests use it to try what only members of a cluster may do. Containers and network are labeled with
the folder's path, by which they are found again. The control node must reach the containers'
addresses, as it does if Docker runs on Linux.

``python -m tests.support.testbed`` starts and removes Molecule's test bed.
"""

from tests.support.testbed.bed import HOME as HOME
from tests.support.testbed.bed import Host as Host
from tests.support.testbed.bed import Rank as Rank
from tests.support.testbed.bed import Testbed as Testbed
from tests.support.testbed.bed import down as down
from tests.support.testbed.bed import running_testbed as running_testbed
from tests.support.testbed.bed import wait_for_sshd as wait_for_sshd
from tests.support.testbed.bed import wait_for_systemd as wait_for_systemd
from tests.support.testbed.engine import BOOKWORM as BOOKWORM
from tests.support.testbed.engine import TRIXIE as TRIXIE
from tests.support.testbed.engine import TestbedError as TestbedError
from tests.support.testbed.engine import docker as docker
from tests.support.testbed.engine import docker_available as docker_available
