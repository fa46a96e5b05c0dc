#!/usr/bin/python
"""Packs on its host what a rank leaves for the control node.

It takes its arguments as WANT_JSON modules do, from a file of JSON, and imports nothing of
Ansible's, which would take longer than the work.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_collect
short_description: Bring home what a rank leaves
description:
  - Packs those of the named folders that are there into one archive in the rank's folder. The
    action plugin of the same name fetches it and unpacks it into the job's folder on the control
    node.
options:
  rank_dir:
    description: The rank's folder.
    type: path
    required: true
  folders:
    description: Names of folders in it.
    type: list
    elements: str
    required: true
  run_dir:
    description: The job's folder on the control node, for the action.
    type: path
    required: true
attributes:
  check_mode:
    support: none
author: The maintainers
"""

EXAMPLES = r"""
- name: Bring the model and the events home
  rank_collect:
    rank_dir: /home/train/train/jobs/digits-1/worker-0
    folders: [model, tensorboard]
    run_dir: runs/digits-1
"""

RETURN = r"""
archive:
  description: The archive on the host; null where none of the folders is there.
  returned: success
  type: str
  sample: /home/train/train/jobs/digits-1/worker-0/results.tar.gz
"""

import json
import os
import sys
import tarfile


def main() -> None:
    """Run the module."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        params = json.load(stream)
    rank_dir = params["rank_dir"]
    there = [n for n in params["folders"] if os.path.isdir(os.path.join(rank_dir, n))]
    archive = os.path.join(rank_dir, "results.tar.gz")
    try:
        if there:
            # Weights hardly get smaller, so little time is spent on that.
            with tarfile.open(archive + ".tmp", "w:gz", compresslevel=1) as tar:
                for name in there:
                    tar.add(os.path.join(rank_dir, name), name)
            os.replace(archive + ".tmp", archive)
    except OSError as error:
        print(json.dumps({"failed": True, "msg": "%s cannot be packed: %s" % (rank_dir, error)}))
        sys.exit(1)
    print(json.dumps({"changed": bool(there), "archive": archive if there else None}))


if __name__ == "__main__":
    main()
