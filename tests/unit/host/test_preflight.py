"""The check of a host before a rank starts there: its warnings and its errors."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpus import MIG, UUIDS, Machine
from tests.support.job_folders import lay_out
from tests.support.lab import run
from train.host import leases, metadata, preflight, processes, suitability
from train.host.call_types import CallError
from train.host.host_facts import Gpu

ROOT, USER = 0, 1000
GONE = "echo 'Error: No such file or directory' >&2; exit 1"


@pytest.mark.parametrize(
    ("user", "answer", "lacks"),
    [
        (ROOT, GONE, True),
        (ROOT, "echo 'table inet train {'", False),
        (ROOT, "echo 'Operation not permitted' >&2; exit 1", False),
        (USER, "echo inactive; exit 3", True),
        (USER, "echo failed; exit 3", True),
        (USER, "echo active", False),
        (USER, "echo unknown; exit 4", False),
        (USER, "exit 1", False),
    ],
)
def test_whether_the_firewalls_table_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, answer: str, lacks: bool
) -> None:
    """Root asks nft, and other users ask systemd. Without rules from setup, neither is asked."""
    rules = tmp_path / "rules.nft"
    monkeypatch.setattr(preflight, "FIREWALL_RULES", str(rules))
    monkeypatch.setattr(preflight, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    asked = ("nft", "list table inet train")
    if user != ROOT:
        asked = ("systemctl", "is-active train-firewall.service")
    program = tmp_path / asked[0]
    program.write_text(f'#!/bin/sh\n[ "$*" = "{asked[1]}" ] || exit 9\n{answer}\n')
    program.chmod(0o755)
    assert not preflight.lacks_firewall()
    rules.touch()
    assert preflight.lacks_firewall() == lacks
    program.unlink()
    assert not preflight.lacks_firewall()


REAL = """
import subprocess, sys
from train.host import preflight
preflight.FIREWALL_RULES = "/dev/null"
print(preflight.lacks_firewall())
subprocess.run(["nft", "add", "table", "inet", "train"], check=True)
print(preflight.lacks_firewall())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("unshare"),
    reason="needs root, nft and unshare",
)
def test_what_nft_really_answers() -> None:
    done = run("unshare", "--net", sys.executable, "-c", REAL)
    assert done.stdout == "True\nFalse\n", done.stderr


def given(tmp_path: Path, **changed: Any) -> dict[str, Any]:
    """Return the arguments for the check of a host."""
    return {
        "root": str(tmp_path),
        "job": "mine",
        "attempt": 1,
        "wait": 0,
        "python": sys.executable,
        "framework": "tensorflow",
        "address": "127.0.0.1",
        "min_free_mb": 1,
        "lease_dir": str(tmp_path / "leases"),
        "foreign_gpu": "ignore",
        "modules": [],
        **changed,
    }


@pytest.mark.parametrize("framework", ["tensorflow", "jax", "torch"])
def test_whether_an_interpreter_has_the_framework(framework: str, tmp_path: Path) -> None:
    """Only the interpreter itself knows which modules it finds, in any kind of environment."""
    program = tmp_path / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    python = {"python": str(program), "framework": framework}
    assert preflight.check(given(tmp_path, **python), preflight.Machine())["lacks_framework"]
    package = tmp_path / "somewhere" / framework
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    program.write_text(f'#!/bin/sh\nPYTHONPATH={package.parent} exec "{sys.executable}" "$@"\n')
    assert not preflight.check(given(tmp_path, **python), preflight.Machine())["lacks_framework"]


def test_ranks_of_a_machine_are_checked_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    lacks = preflight.lacks

    def ask(python: str, module: str) -> bool:
        asked.append(module)
        return lacks(python, module)

    monkeypatch.setattr(preflight, "lacks", ask)
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        taken = server.getsockname()[1]
        shared = given(tmp_path, framework="jax")
        hosts = {"a": {"port": taken}, "b": {"address": "b"}, "c": {}}
        results = preflight.check_all({**shared, "hosts": hosts})["hosts"]
    assert results["a"]["failed"]
    assert f"port {taken} is in use" in results["a"]["msg"]
    assert (results["b"]["host"]["address"], results["b"]["lacks_framework"]) == ("b", True)
    assert results["c"]["host"]["address"] == shared["address"]
    assert asked == ["jax"], "the interpreter is asked once"


def test_a_rank_of_any_program_needs_no_framework(tmp_path: Path) -> None:
    checked = preflight.check(given(tmp_path, framework="none"), preflight.Machine())
    assert (checked["lacks_framework"], checked["host"]["versions"]) == (False, {})


@pytest.mark.parametrize(
    ("framework", "packages", "versions", "gpus_wanted"),
    [
        ("jax", ["jax-0.10.2", "jaxlib-0.10.2", "keras-3.15.1", "absl_py-2.5.1"], 3, None),
        ("jax", ["jax-0.10.2", "jax_cuda12_plugin-0.10.2"], 1, "auto"),
        ("torch", ["torch-2.13.0+cpu"], 1, None),
        ("torch", ["torch-2.13.0"], 1, "auto"),
        ("torch", ["keras-3.15.1"], 0, "auto"),
    ],
)
def test_versions_of_a_framework_and_whether_it_uses_gpus(
    framework: str, packages: list[str], versions: int, gpus_wanted: str | None, tmp_path: Path
) -> None:
    program = tmp_path / "env/bin/python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    for name in packages:
        (tmp_path / f"env/lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
    host = preflight.check(
        given(tmp_path, python=str(program), framework=framework, gpus="auto"), preflight.Machine()
    )["host"]
    assert len(host["versions"]) == versions
    assert f"{framework}-{host['versions'].get(framework, '')}" in [*packages, f"{framework}-"]
    assert (host["gpus_wanted"], host["tensorflow"]) == (gpus_wanted, None)


def test_an_environment_on_a_filesystem_with_noexec_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suitability, "is_noexec", lambda *_: True)
    with pytest.raises(CallError, match=r"mounted with noexec.*remount,exec"):
        preflight.check(given(tmp_path), preflight.Machine())


def test_who_opens_a_port_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "lacks_firewall", lambda: True)
    assert preflight.check(given(tmp_path), preflight.Machine())["warnings"] == []
    assert preflight.check(given(tmp_path, port=12345), preflight.Machine())["warnings"] == [
        "the table inet train of the role firewall is not loaded on this host, so any host "
        "can connect to port 12345: run `<suggest setup tags=firewall>`"
    ]


def test_processes_without_a_job(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only instances without a lease are searched for them."""
    monkeypatch.setattr(preflight, "PAUSE_S", 0.0)
    machine.has(1, instances=2)
    machine.runs(f"{MIG[0]}, 4711, 1, a job's", f"{MIG[1]}, 4712, 1, x", f"{UUIDS[0]}, 4713, 1, y")
    found: list[Gpu] = [{"index": 0, "uuid": UUIDS[0], "instances": MIG}]

    def pids(*leased: str) -> list[int]:
        held: list[leases.Entry] = [{"resource": resource} for resource in ("port/12345", *leased)]
        return [process["pid"] for process, _ in preflight.foreign_processes(found, held)]

    # A process listed for the whole GPU may run on the leased instance.
    assert pids(f"gpu/{UUIDS[0]}/{MIG[0]}") == [4712]
    assert pids(f"gpu/{UUIDS[0]}") == []
    assert pids() == [4711, 4712, 4713]


def test_a_host_that_will_be_reclaimed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problems(job: str, seconds: float | None) -> list[str]:
        finding = metadata.Finding(seconds)
        monkeypatch.setattr(metadata, "ask_once", lambda setting, timeout: finding)
        return preflight.check_preemption(str(tmp_path), job, metadata.AUTO)

    assert problems("night", None) == []
    assert problems("", 30.0) == [
        "its metadata server reports that this host will be reclaimed (train_job_preemption)"
    ]
    lay_out(
        *(tmp_path, "night", "worker-0"),
        host="a",
        boot_id=processes.boot_id(),
        init_start=processes.start_time(1),
        preemption={"source": "file", "at": time.time()},
    )
    (problem,) = problems("night", None)
    assert problem.startswith("a notice of preemption came ")
    assert problems("", None) == []
