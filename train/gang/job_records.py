"""Records of the control node: a job's manifest and result, the jobs and hosts of an inventory.

docs/formats.md describes every field. Records that hosts also write are in train/host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict, cast

from train.host import json_files
from train.host.host_facts import HostFacts
from train.host.load import Facts
from train.host.progress_records import Progress
from train.host.records import ListedRank, RankInfo
from train.host.usage import Held, Usage

MANIFEST_FILE = "manifest.json"
RESULT_FILE = "result.json"
EVENTS_FILE = "events.jsonl"
#: The file that the process that watches a job has locked.
LOCK_FILE = ".followed"
LOAD_DIR = "load"
#: Has the lock of the script's packages.
PACKAGES_DIR = "packages"
#: The file with the overview of all hosts, in the dashboard's folder.
OVERVIEW_FILE = "overview.json"


class PlannedRank(TypedDict):
    """A task of the job and its placement. ``rank.json`` repeats most of these fields."""

    host: str
    task: str
    type: str
    index: int
    port: int | None
    non_training: bool
    ranks_on_machine: int
    gpus: list[str] | None
    results_dir: str
    checkpoint_copy: bool


class Packages(TypedDict):
    """A script's packages, in an environment on top of TensorFlow's."""

    name: str  # the link to the environment on each host
    requirements: str  # the file that lists them
    lock: str  # the folder of the lock on the control node
    sends_wheels: bool  # whether hosts get wheels from the control node


class _Attempt(TypedDict):
    attempt: int
    planned_at: float
    claim: str
    staged: bool
    ranks: dict[str, str]
    left_out: dict[str, str]


class Attempt(_Attempt, total=False):
    """An attempt in the manifest. Jobs of older versions lack the last fields."""

    grown: bool  # whether the previous attempt was ended to continue with more hosts
    preempted: bool  # the same, to continue without a host that was preempted
    requested: bool  # whether a user, or a batch system, started it


class Policy(TypedDict):
    """Rules for restarts."""

    max_restarts: int
    restart_delay: float
    min_workers: int
    host_wait: float


class Manifest(TypedDict, total=False):
    """``manifest.json``, which is named ``job.json`` on the hosts."""

    version: int
    job: str
    created_at: float
    script: str
    entry: str
    module: str
    include: list[str]
    packages: Packages | None
    arguments: list[str]
    rank_arguments: dict[str, list[str]]
    code_sha256: str
    git: dict[str, str | bool] | None
    control: dict[str, str]
    policy: Policy
    attempt: int
    attempts: list[Attempt]
    versions: dict[str, str | list[str]]
    results_dirs: dict[str, str]
    hosts: dict[str, HostFacts]
    ranks: list[PlannedRank]
    cluster: dict[str, list[str]]
    framework: str
    keras: int
    seed: int
    start_timeout: int
    max_runtime: int
    environment_names: list[str]
    environment_differs: list[str]


def hosts_of(manifest: Manifest) -> set[str]:
    """Return the inventory hosts of all attempts of a job, with those that were left out."""
    found = {rank["host"] for rank in manifest["ranks"]}
    for attempt in manifest["attempts"]:
        found |= {*attempt["ranks"].values(), *attempt["left_out"]}
    return found


class RankResult(TypedDict):
    """A rank's part of the result."""

    task: str
    host: str
    phase: str
    exit_code: int | None
    cause: str | None
    reason: str
    weights_sha256: str | None


class ResultRecord(TypedDict, total=False):
    """``result.json``: how a job ended."""

    version: int
    job: str
    state: str
    attempts: int
    root_cause: str | None
    cause: str | None
    step: int | None
    message: str
    doubts: list[str]
    notes: list[str]
    strict: bool
    metrics: dict[str, float | str]
    ranks: list[RankResult]
    restart: bool
    restart_reason: str
    restarts_left: int
    restart_delay: float


class RankEvent(TypedDict):
    """A line of ``events.jsonl`` about a rank."""

    t: float
    task: str
    host: str
    phase: str
    reason: str
    exit_code: int | None
    progress: Progress
    last_line: str
    age: float | None


class Load(TypedDict):
    """A line of ``load/<task>.jsonl``: CPU and GPU load of a rank and its host."""

    t: float
    load: Facts


class FoundRank(RankInfo, total=False):
    """A rank to watch, as identified by its host or, without an answer, by the control node."""

    host: str
    start_error: str


class JobRank(ListedRank):
    """A rank of a job, with the inventory hosts that reported it."""

    seen_by: list[str]


class MergedJob(TypedDict):
    """A job, merged from the reports of all hosts. See ``listing.merge``."""

    job: str
    state: str
    attempt: int
    alive: int
    total: int
    hosts: list[str]
    started_at: float
    ended_at: float | None
    age: float
    size: int
    progress: Progress
    ranks: list[JobRank]
    stale: list[JobRank]
    members: list[str] | None
    restarts: int


class HostState(TypedDict):
    """The last known state of an inventory host."""

    answered_at: float | None  # time of the last answer; None before the first one
    error: str  # why the last question was not answered; empty if it was
    usage: Usage | None
    holds: list[Held]


class Listed(TypedDict):
    """The overview of all hosts and their jobs."""

    at: float
    hosts: dict[str, HostState]
    jobs: list[dict[str, Any]]  # see listing.public, with the field ``owner``


def arguments_of(manifest: Manifest, host: str) -> list[str]:
    """Return the script's arguments on an inventory host."""
    return manifest.get("rank_arguments", {}).get(host, manifest["arguments"])


def read_manifest(run_dir: Path) -> Manifest | None:
    """Return the manifest from a job's folder on the control node, or None if there is none."""
    return cast("Manifest | None", json_files.read_json(str(run_dir / MANIFEST_FILE)))


def staged(manifest: Manifest) -> Manifest:
    """Return ``manifest`` with its last attempt marked as staged.

    Only staged attempts count as restarts.
    """
    *earlier, last = manifest["attempts"]
    if last["staged"]:
        return manifest
    return {**manifest, "attempts": [*earlier, {**last, "staged": True}]}


def read_result(run_dir: Path) -> ResultRecord | None:
    """Return the result from a job's folder on the control node, or None if there is none."""
    return cast("ResultRecord | None", json_files.read_json(str(run_dir / RESULT_FILE)))
