#!/usr/bin/python
"""Starts a rank's supervisor on its host.

It takes its arguments as WANT_JSON modules do, from a file of JSON, and imports nothing of
Ansible's: that would take longer than the start itself.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_start
short_description: Start a rank's supervisor
description:
  - Starts the supervisor of a rank that rank_stage has laid out. The supervisor goes into the
    background by itself, once it has noted its start in the rank's folder.
options:
  rank_dir:
    description: The rank's folder, as rank_stage returned it.
    type: path
    required: true
attributes:
  check_mode:
    support: none
author: The maintainers
"""

EXAMPLES = r"""
- name: Start the rank's supervisor
  rank_start:
    rank_dir: "{{ staged.rank.rank_dir }}"
  async: 60
  poll: 0
"""

RETURN = r"""# """

import json
import os
import subprocess
import sys


def main() -> None:
    """Run the module."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        rank_dir = json.load(stream)["rank_dir"]
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-m", "host.supervisor", rank_dir],
        cwd=os.path.join(rank_dir, "launcher"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    said = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        print(json.dumps({"failed": True, "msg": "the supervisor did not start: " + said}))
        sys.exit(1)
    print(json.dumps({"changed": True}))


if __name__ == "__main__":
    main()
