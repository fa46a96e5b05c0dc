"""Allocations of Slurm, PBS and LSF, as their environment variables describe them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.gang import allocations, host_slots
from train.gang.errors import UserError
from train.gang.host_slots import HostSlots


def no_program(words: Sequence[str]) -> None:
    """Stand for a machine without the programs of the batch system."""


def read(system: str, environment: Mapping[str, str]) -> allocations.Allocation:
    return allocations.read(system, environment, no_program)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node-1", ["node-1"]),
        ("node-[1-3]", ["node-1", "node-2", "node-3"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("a[1,3-4,007],b,c[2]", ["a1", "a3", "a4", "a007", "b", "c2"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("n[1-2].lab.example.org", ["n1.lab.example.org", "n2.lab.example.org"]),
        ("n[9-11]-ib", ["n9-ib", "n10-ib", "n11-ib"]),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    assert allocations.expand(text) == names


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("n[1-2", "n[1-2"),
        ("n1-2]", "n1-2]"),
        ("n[[1-2]]", "n[[1-2]]"),
        ("a,,b", ""),
        ("", ""),
        ("n[]", ""),
        ("n[a-b]", "a-b"),
        ("n[3-1]", "3-1"),
        ("n[1-2-3]", "1-2-3"),
    ],
)
def test_malformed_node_lists(text: str, near: str) -> None:
    with pytest.raises(UserError) as refusal:
        allocations.expand(text)
    assert str(refusal.value).endswith(f"near {near!r}")


@pytest.mark.parametrize("text", ["n[1-999999]", "n[1-1000]m[1-1000]"])
def test_node_lists_have_a_limit(text: str) -> None:
    with pytest.raises(UserError, match="more than 65536"):
        allocations.expand(text)


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 9)), min_size=1, max_size=6))
def test_lists_of_numbers(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in runs)
    assert allocations.counts(text) == [n for number, times in runs for n in [number] * times]


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (allocations.expand, allocations.counts):
        try:
            found = parse(text)
        except UserError as error:
            refusal = str(error)
        else:
            refusal, size = "", len(found)
        assert refusal or 0 < size <= allocations.MAX_NODES


#: As Slurm 22.05 sets them for `sbatch -N3 -n5`.
SLURM = {
    "SLURM_JOB_ID": "626",
    "SLURM_JOB_NODELIST": "gpu[01-02],x",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NTASKS": "5",
}


def test_each_task_of_slurm_is_a_rank() -> None:
    found = read("slurm", SLURM)
    # Jobs may share nodes, so that the ports depend on the job.
    ports = 20_000 + 16
    hosts = (HostSlots("gpu01", 2, "", ports), HostSlots("gpu02", 2, "", ports))
    assert found.hosts == (*hosts, HostSlots("x", 1, "", ports))
    assert (found.system, found.job, found.restarts) == ("slurm", "626", 0)
    assert read("slurm", {**SLURM, "SLURM_RESTART_COUNT": "2"}).restarts == 2
    assert host_slots.parse_list(host_slots.source_of(found.hosts)) == [*found.hosts]


def test_without_a_number_of_tasks_each_node_is_a_rank() -> None:
    # Slurm then counts the cores of nodes that the job has for itself.
    environment = {**SLURM, "SLURM_TASKS_PER_NODE": "64(x3)"}
    del environment["SLURM_NTASKS"]
    assert [host.slots for host in read("slurm", environment).hosts] == [1, 1, 1]


def test_scontrol_expands_the_list_where_it_exists() -> None:
    asked = []

    def program(words: Sequence[str]) -> str | None:
        asked.append([*words])
        return "a\nb\nc\n"

    found = allocations.read("slurm", SLURM, program)
    assert [host.host for host in found.hosts] == ["a", "b", "c"]
    assert asked == [["scontrol", "show", "hostnames", "gpu[01-02],x"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SLURM_JOB_ID": ""}, "SLURM_JOB_ID is not set, so this is not a batch job of Slurm"),
        ({"SLURM_TASKS_PER_NODE": "2"}, r"(2) describes 1 nodes, but SLURM_JOB_NODELIST"),
        ({"SLURM_TASKS_PER_NODE": "0(x3)"}, "the allocation of job 626 has no tasks"),
        ({"SLURM_TASKS_PER_NODE": "2(x2),9999"}, "9999 slots, but a host has at most"),
        ({"SLURM_JOB_NODELIST": "a,b,$(x)"}, "$(x) is not a host name"),
    ],
)
def test_malformed_allocations_of_slurm(changes: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as refusal:
        read("slurm", {**SLURM, **changes})
    assert said in str(refusal.value)


#: As `scontrol show job --details` prints them, shortened.
DETAILS = """\
JobId=626 JobName=x
   NumNodes=3 NumCPUs=8 NumTasks=5 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
     Nodes=gpu[01-02] CPU_IDs=0-3 Mem=0 GRES=gpu:a100:3(IDX:0-1,4)
     Nodes=x CPU_IDs=0 Mem=0 GRES=
   MinCPUsNode=1
"""


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (8, [[0], [1, 4], [0], [1, 4]]),  # the job sees all GPUs of the node
        (3, [None] * 4),  # only its own, which have other indices
        (None, [None] * 4),
    ],
)
def test_gpus_of_a_slurm_job(visible: int | None, gpus: list[list[int] | None]) -> None:
    def program(words: Sequence[str]) -> str | None:
        if words[0] == "nvidia-smi":
            return None if visible is None else "GPU\n" * visible
        return DETAILS if "--details" in words else None

    environment = {**SLURM, "SLURM_JOB_GPUS": "0,1,4", "SLURM_GPUS_ON_NODE": "3"}
    found = allocations.read("slurm", environment, program)
    ranks = host_slots.ranks_of(found.hosts)
    assert [rank.variables.get("train_job_gpus") for rank in ranks] == [*gpus, None]
    assert host_slots.parse_list(host_slots.source_of(found.hosts)) == [*found.hosts]


def test_the_node_file_of_pbs(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("n1\nn2\nn1\nn2\nn3\n")
    found = read("pbs", {"PBS_JOBID": "7[2].server", "PBS_NODEFILE": str(file)})
    port = 20_000 + 7 * 16
    assert found.hosts == tuple(
        HostSlots(f"n{n}", s, "", port) for n, s in ((1, 2), (2, 2), (3, 1))
    )
    with pytest.raises(UserError, match=r"cannot read .*/none \(PBS_NODEFILE\): No such file"):
        read("pbs", {"PBS_JOBID": "7", "PBS_NODEFILE": str(tmp_path / "none")})
    with pytest.raises(UserError, match="PBS_JOBID is not set, so this is not a batch job of PBS"):
        read("pbs", {"PBS_NODEFILE": str(file)})


def test_the_hosts_of_lsf(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a\na\nb\n")
    forms = [
        {"LSB_DJOB_HOSTFILE": str(file)},
        {"LSB_MCPU_HOSTS": "a 2 b 1"},
        {"LSB_HOSTS": "a a b"},
    ]
    for form in forms:
        found = read("lsf", {"LSB_JOBID": "625", **form})
        assert found.hosts == (HostSlots("a", 2, "", 20_000), HostSlots("b", 1, "", 20_000))
    for wrong in ("a 2 b", "a b"):
        with pytest.raises(UserError, match=r"LSB_MCPU_HOSTS .* is malformed"):
            read("lsf", {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": wrong})
    with pytest.raises(UserError, match="LSB_HOSTS is not set, so this is not a batch job of LSF"):
        read("lsf", {"LSB_JOBID": "1"})


def test_programs_that_fail_are_as_if_missing() -> None:
    assert allocations.run_program([sys.executable, "-c", "print(1)"]) == "1\n"
    assert allocations.run_program([sys.executable, "-c", "raise SystemExit(1)"]) is None
    assert allocations.run_program(["no-such-program-here"]) is None
