"""``python -m tests.support.testbed``: starts and removes a test bed of SSH hosts in Docker."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.support.testbed import BOOKWORM, Testbed, TestbedError, down


def main() -> int:
    """Do what the command line asks and return the exit code: 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.testbed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start hosts and write keys and an inventory")
    start.add_argument("count", type=int, metavar="N", help="how many hosts")
    start.add_argument("--dir", type=Path, required=True, help="the test bed's folder")
    start.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="HOST:CONTAINER[:ro]",
        help="a folder, or a named volume, that all hosts share",
    )
    start.add_argument(
        "--base",
        action="append",
        metavar="IMAGE",
        help=f"the Debian image of all hosts, or once for each host; {BOOKWORM} by default",
    )
    start.add_argument("--systemd", action="store_true", help="run systemd, not sshd alone")
    start.add_argument(
        "--stranger", action="store_true", help="start one more host that is in no inventory"
    )
    end = commands.add_parser("down", help="remove hosts, network, keys and inventory")
    end.add_argument("--dir", type=Path, required=True, help="the test bed's folder")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `up` tidies up
    try:
        if options.command == "up":
            bed = Testbed.up(
                options.count,
                options.dir,
                mounts=options.mount,
                bases=options.base or [BOOKWORM],
                systemd=options.systemd,
                stranger=options.stranger,
            )
            for host in (*bed.hosts, *filter(None, [bed.stranger])):
                print(f"{host.name}  {host.address}  {host.container}")
            print(f"inventory: {bed.directory / 'inventory'}")
        else:
            print(f"removed {len(down(options.dir))} host(s)")
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
