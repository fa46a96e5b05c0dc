#!/usr/bin/python
"""Lays out a rank's folder on its host.

It takes its arguments as WANT_JSON modules do, from a file of JSON, and imports nothing of
Ansible's, which would take longer than the work; what it shares with the other modules comes with
the archive.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_stage
short_description: Lay out a rank's folder on its host
description:
  - Unpacks the job's archive (the script with its neighbours, and the launcher) into the rank's
    folder and writes C(tf_config.json) and C(rank.json). The archive is sent by the action plugin
    of the same name.
  - The addresses of the cluster are resolved first, because TensorFlow hangs without a word on a
    name that it cannot resolve.
options:
  archive:
    description: The job's archive; on the control node for the action, on the host for the module.
    type: path
    required: true
  root:
    description: Folder of the jobs on the host.
    type: path
    required: true
  tf_config:
    description: The rendered TF_CONFIG, a JSON object.
    type: str
    required: true
  spec:
    description:
      - The contents of C(rank.json), a JSON object. It holds the environment of the script and is
        kept out of all output.
    type: str
    required: true
attributes:
  check_mode:
    support: none
author: The maintainers
"""

EXAMPLES = r"""
- name: Lay out the rank's folder
  rank_stage:
    archive: runs/digits-1/code.tar.gz
    root: ~/train
    tf_config: "{{ lookup('ansible.builtin.template', 'tf_config.json.j2') }}"
    spec: "{{ lookup('ansible.builtin.template', 'rank.json.j2') }}"
"""

RETURN = r"""
rank:
  description: The rank, in the form that rank_state returns, too.
  returned: success
  type: dict
  sample:
    job: digits-1
    task: worker-0
    rank_dir: /home/train/train/jobs/digits-1/worker-0
    port: 12345
    service: false
    host_python: /usr/bin/python3
    place: 5f0c/node7/net:[4026531840]/mnt:[4026531841]/uid:1000
"""

import importlib
import json
import os
import shutil
import socket
import sys
import tarfile
from typing import Any, Dict, List


class StageError(Exception):
    """What is wrong, and what helps; the module's ``msg``."""


def unresolvable(cluster: Dict[str, List[str]]) -> List[str]:
    """Return the hosts of ``cluster`` (host:port by task type) that cannot be resolved here."""
    missing = []
    for address in sorted({address for tasks in cluster.values() for address in tasks}):
        host = address.rpartition(":")[0].strip("[]")
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            missing.append(host)
    return missing


def stage(params: Dict[str, Any]) -> Dict[str, Any]:
    """Fill the rank's folder and return the rank.

    Raises:
        StageError: nothing of the folder is left.
    """
    spec, tf_config = json.loads(params["spec"]), json.loads(params["tf_config"])
    missing = unresolvable(tf_config["cluster"])
    if missing:
        raise StageError(
            "this host cannot resolve %s: set train_job_address of those ranks to an address that "
            "every host knows" % ", ".join(missing)
        )
    root = os.path.abspath(os.path.expanduser(params["root"]))
    rank_dir = os.path.join(root, "jobs", spec["job"], spec["task"])
    try:
        os.makedirs(rank_dir, mode=0o755)
    except FileExistsError:
        raise StageError("%s is there already: choose another train_job_id" % rank_dir) from None
    except OSError as error:
        raise StageError("%s cannot be made: %s" % (rank_dir, error)) from None
    try:
        with tarfile.open(params["archive"]) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(rank_dir, filter="data")
            else:
                archive.extractall(rank_dir)  # made by this project's own control node
        sys.path.insert(0, os.path.join(rank_dir, "launcher"))
        ranks, records = (importlib.import_module("host." + name) for name in ("ranks", "records"))
        records.write_json(os.path.join(rank_dir, records.TF_CONFIG_FILE), tf_config)
        records.write_json(os.path.join(rank_dir, records.RANK_FILE), spec, mode=0o600)
    except OSError as error:
        shutil.rmtree(rank_dir, ignore_errors=True)
        raise StageError("%s cannot be filled: %s" % (rank_dir, error)) from None
    return dict(ranks.identify(rank_dir, spec))


def main() -> None:
    """Run the module."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        params = json.load(stream)
    try:
        print(json.dumps({"changed": True, "rank": stage(params)}))
    except StageError as error:
        print(json.dumps({"failed": True, "msg": str(error)}))
        sys.exit(1)


if __name__ == "__main__":
    main()
