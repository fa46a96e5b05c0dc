"""``python -m tests.support.testbed``: starts and removes Molecule's test bed of SSH hosts."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.support.lab import tensorflow_mounts
from tests.support.testbed import BOOKWORM, TRIXIE, Testbed, TestbedError, down


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.testbed", description=__doc__)
    parser.add_argument("command", choices=["up", "down"])
    parser.add_argument("--dir", type=Path, required=True, help="the test bed's folder")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `up` cleans up
    try:
        if options.command == "down":
            print(f"removed {len(down(options.dir))} host(s)")
            return
        mounts, bases = tensorflow_mounts("3.11", "3.13"), (BOOKWORM, TRIXIE)
        Testbed.up(2, options.dir, mounts=mounts, bases=bases, systemd=True, stranger=True)
    except TestbedError as error:
        sys.exit(f"testbed: {error}")


if __name__ == "__main__":
    main()
