#!/usr/bin/python
"""Lays out a rank's folder on its host.

It takes its arguments as JSONARGS modules do, in its own text, and imports nothing of Ansible's:
see train/gang/host_modules.py.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_stage
short_description: Lay out a rank's folder on its host
description:
  - Unpacks the job's archive (the script with its neighbours, and the launcher) into the rank's
    folder and writes C(tf_config.json) and C(rank.json). The archive is sent by the action plugin
    of the same name.
  - In a later attempt of the job, what the one before left running is ended, its files are set
    aside, and code, checkpoints, model and events stay.
  - The archive and C(job.json) stay in the job's folder, so that any control node can go on.
  - Before anything is changed, the rank's port and GPUs are taken for it, all or none. Who gives up
    the start has rank_unstage give them back.
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
  manifest:
    description: The contents of C(job.json), a JSON object.
    type: str
    required: true
  readable_by:
    description:
      - Who may read the job's folder with all that lies in it, its V(owner), which is the login
        user, or V(all) users of the machine, as far as the login user's umask allows.
    type: str
    choices: [owner, all]
    required: true
  lease_dir:
    description: Where the jobs of the machine note which of them has which port and GPU.
    type: path
    required: true
  anew:
    description: Whether a job that was told to stop is to be started again.
    type: bool
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
    manifest: "{{ __train_job_plan.manifest | to_json }}"
    readable_by: owner
    lease_dir: /tmp/train-leases
    anew: false
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

import base64
import contextlib
import json
import os
import shutil
import socket
import sys
import tarfile
import time
from typing import Any, Dict, List

# Ansible puts the arguments here: <<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>
PARAMS = json.loads("<<INCLUDE_ANSIBLE_MODULE_COMPLEX_ARGS>>")
_archive = os.memfd_create("launcher")
os.write(_archive, base64.b64decode(PARAMS["launcher"]))
sys.path.insert(0, "/proc/self/fd/%d" % _archive)

from host import leases, ranks, records

REMEDY = (
    "stop that job, choose another train_job_port or train_job_gpus, or wait for it (-e "
    "train_job_wait=SECONDS)"
)
#: What the archive is unpacked in, after the name of the rank's folder.
UNPACKED = ".unpacked"


#: Seconds after which a claim on an attempt counts no more that has come to nothing.
CLAIM_S = 300.0
#: Seconds after which a gang is up that was staged.
YOUNG_S = 30.0


class StageError(Exception):
    """What is wrong, and what helps; the module's ``msg``."""


class OvertakenError(StageError):
    """Another control node has started the same attempt, or a later one."""


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


def stage(params: Dict[str, Any], warnings: List[str]) -> Dict[str, Any]:
    """Take the rank's port and GPUs, fill its folder and return the rank.

    Args:
        warnings: what does not keep the rank from its start is added to it.

    Raises:
        StageError: nothing of the folder is left, and nothing is taken.
    """
    spec, tf_config = json.loads(params["spec"]), json.loads(params["tf_config"])
    missing = unresolvable(tf_config["cluster"])
    if missing:
        raise StageError(
            "this host cannot resolve %s: set train_job_address of those ranks to an address that "
            "every host knows" % ", ".join(missing)
        )
    manifest = json.loads(params["manifest"])
    job_dir = os.path.join(params["root"], "jobs", spec["job"])
    try:
        os.makedirs(os.path.dirname(job_dir), exist_ok=True)
        with contextlib.suppress(FileExistsError):  # of another rank or attempt
            os.mkdir(job_dir, 0o700 if params["readable_by"] == "owner" else 0o755)
        if spec["attempt"] > 1:
            claim(params["root"], job_dir, manifest)
    except OSError as error:
        raise StageError("%s cannot be made: %s" % (job_dir, error)) from None
    try:
        take_leases(params["lease_dir"], spec, manifest, warnings)
    except StageError:
        with contextlib.suppress(OSError):  # something of the job is in it
            os.rmdir(job_dir)
        raise
    try:
        return fill(params, spec, tf_config)
    except BaseException:
        leases.release_rank(spec)
        raise


def claim(root: str, job_dir: str, manifest: Dict[str, Any]) -> None:
    """Make an attempt this control node's own, before anything of the one before is ended.

    Raises:
        OvertakenError: another control node was faster.
        OSError: the folder cannot be written.
    """
    attempt, mark = manifest["attempt"], manifest["attempts"][-1]["claim"]
    told = "another control node has started attempt %d of job %s: attach to it"
    states = [ranks.observe(rank_dir) for rank_dir in ranks.rank_dirs(root, manifest["job"])]
    alive = {s.get("attempt") for s in states if s["phase"] in records.ALIVE_PHASES}
    job_file = os.path.join(job_dir, records.JOB_FILE)
    known = records.read_whole(job_file) or {"attempt": 0, "attempts": manifest["attempts"]}
    others = known["attempts"][-1].get("claim") not in {
        a.get("claim") for a in manifest["attempts"]
    }
    if known["attempt"] > attempt or (
        others and (known["attempt"] in alive or time.time() - os.stat(job_file).st_mtime < YOUNG_S)
    ):
        raise OvertakenError(told % (known["attempt"], manifest["job"]))
    path = os.path.join(job_dir, records.CLAIM_FILE % attempt)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if records.read_claim(path) == mark:
            return  # another rank of this machine was first
        if attempt in alive or time.time() - os.stat(path).st_mtime < CLAIM_S:
            raise OvertakenError(told % (attempt, manifest["job"])) from None
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(mark)


def take_leases(
    folder: str, spec: Dict[str, Any], manifest: Dict[str, Any], warnings: List[str]
) -> None:
    """Take the rank's port and GPUs, and note in ``spec`` what the supervisor is to hold.

    A folder that cannot be used is only warned of: another user may have made it so.

    Raises:
        StageError: another job has one of them.
    """
    created_at = manifest["created_at"]
    gpus = manifest["hosts"][spec["host"]]["gpus"]
    resources = leases.wanted(spec["port"], spec["gpus"], gpus)
    holder = leases.Holder(created_at, spec["job"], spec["task"], spec["attempt"])
    seconds = max(leases.TAKEN_S, spec["start_timeout"])
    try:
        leases.take(folder, resources, holder, seconds)
    except leases.HeldError as error:
        raise StageError("%s: %s" % (error, REMEDY)) from None
    except leases.LeaseError as error:
        warnings.append("the rank runs without leases, which keep jobs apart: %s" % error)
    spec["leases"] = {"created_at": created_at, "resources": resources, "folder": folder}


def fill(params: Dict[str, Any], spec: Dict[str, Any], tf_config: Dict[str, Any]) -> Dict[str, Any]:
    """Fill the rank's folder and return the rank.

    Raises:
        StageError: nothing of the folder is left.
    """
    job_dir = os.path.join(params["root"], "jobs", spec["job"])
    rank_dir = os.path.join(job_dir, spec["task"])
    spec["home"] = os.path.join(job_dir, spec["home"])
    spec["checkpoint_dir"] = os.path.expanduser(os.path.expandvars(spec["checkpoint_dir"]))
    again = spec["attempt"] > 1
    try:
        os.makedirs(rank_dir, mode=0o755, exist_ok=again)
    except FileExistsError:
        raise StageError("%s is there already: choose another train_job_id" % rank_dir) from None
    except OSError as error:
        raise StageError("%s cannot be made: %s" % (rank_dir, error)) from None
    try:
        if not os.path.isdir(os.path.join(rank_dir, "launcher")):
            unpack(params["archive"], rank_dir)
        if again:
            earlier = earlier_environment(job_dir, spec["host"])
            spec["environment"] = {**earlier, **spec["environment"]}
            end_earlier(spec["host"], job_dir, rank_dir)
        told_to_stop = os.path.join(job_dir, records.TOLD_TO_STOP_FILE)
        if params["anew"]:
            with contextlib.suppress(FileNotFoundError):  # another rank of this machine was first
                os.unlink(told_to_stop)
        replace(params["archive"], os.path.join(job_dir, records.ARCHIVE_FILE))
        records.write_json(os.path.join(job_dir, records.JOB_FILE), json.loads(params["manifest"]))
        records.write_json(os.path.join(rank_dir, records.TF_CONFIG_FILE), tf_config)
        records.write_json(os.path.join(rank_dir, records.RANK_FILE), spec, mode=0o600)
    except OSError as error:
        if not again:
            shutil.rmtree(rank_dir + UNPACKED, ignore_errors=True)
            shutil.rmtree(rank_dir, ignore_errors=True)
            with contextlib.suppress(OSError):  # another rank of this machine may be in it
                os.rmdir(job_dir)
        raise StageError("%s cannot be filled: %s" % (rank_dir, error)) from None
    return dict(ranks.identify(rank_dir, spec))


def unpack(archive: str, folder: str) -> None:
    """Unpack the job's archive, or leave nothing."""
    temporary = folder + UNPACKED
    shutil.rmtree(temporary, ignore_errors=True)
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(temporary, filter="data")
        else:
            tar.extractall(temporary)  # made by this project's own control node
    for name in os.listdir(temporary):
        os.replace(os.path.join(temporary, name), os.path.join(folder, name))
    os.rmdir(temporary)


def replace(source: str, target: str) -> None:
    """Copy a file in one step; several ranks of a machine may do so at once."""
    temporary = "%s.%d" % (target, os.getpid())
    shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def earlier_environment(job_dir: str, host: str) -> Dict[str, str]:
    """Return the script's environment as an earlier attempt had it, if possible for ``host``.

    A control node that has attached to the job does not know it.
    """
    found: Dict[str, str] = {}
    for task in sorted(os.listdir(job_dir)):
        path = os.path.join(job_dir, task, records.RANK_FILE)
        spec = records.read_whole(path) if os.path.exists(path) else None
        if spec is not None and (not found or spec["host"] == host):
            found = dict(spec["environment"])
    return found


def end_earlier(host: str, job_dir: str, rank_dir: str) -> None:
    """End what an earlier attempt left running for this inventory host, and make room.

    Raises:
        StageError: a process does not end.
    """
    root, job = os.path.dirname(os.path.dirname(job_dir)), os.path.basename(job_dir)
    before = ranks.find(root, host, job)
    for folder in {before, rank_dir} - {None}:
        receipt = ranks.stop(folder, 1.0, "was stopped for another attempt")
        if receipt["remaining"]:
            raise StageError("processes %s of an earlier attempt do not end" % receipt["remaining"])
    ranks.set_aside(rank_dir)


def main() -> None:
    """Run the module."""
    warnings: List[str] = []
    try:
        rank = stage(PARAMS, warnings)
        print(json.dumps({"changed": True, "rank": rank, "warnings": warnings}))
    except StageError as error:
        overtaken = isinstance(error, OvertakenError)
        print(json.dumps({"failed": True, "msg": str(error), "overtaken": overtaken}))
        sys.exit(1)


if __name__ == "__main__":
    main()
