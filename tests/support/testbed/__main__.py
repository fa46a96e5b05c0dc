"""``python -m tests.support.testbed``: starts and removes a test bed of SSH hosts in Docker."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.testbed import BOOKWORM, Testbed, TestbedError, down


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.testbed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start hosts and write keys and an inventory")
    end = commands.add_parser("down", help="remove hosts, network, keys and inventory")
    for command in (start, end):
        command.add_argument("--dir", type=Path, required=True, help="the test bed's folder")
    start.add_argument("count", type=int, metavar="N", help="how many hosts")
    mount: Any = {"action": "append", "default": [], "metavar": "HOST:CONTAINER[:ro]"}
    start.add_argument("--mount", **mount, help="a folder, or a volume, that all hosts share")
    start.add_argument("--base", action="append", help="the Debian image of all hosts, or of each")
    start.add_argument("--systemd", action="store_true", help="run systemd, not sshd alone")
    start.add_argument("--stranger", action="store_true", help="one more, in no inventory")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `up` tidies up
    try:
        if options.command == "down":
            print(f"removed {len(down(options.dir))} host(s)")
            return
        more = {"systemd": options.systemd, "stranger": options.stranger}
        bases = options.base or [BOOKWORM]
        bed = Testbed.up(options.count, options.dir, mounts=options.mount, bases=bases, **more)
        print(f"inventory: {bed.directory / 'inventory'}")
    except TestbedError as error:
        sys.exit(f"testbed: {error}")


if __name__ == "__main__":
    main()
