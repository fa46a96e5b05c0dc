"""The commands that follow no job of the user's: status, list, logs, stop, clean, drill.

Each takes the parsed command line, whose ``inventory`` is an AnsibleOptions, and the variables of
``-e``, and returns the exit code.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from train.cli import drill as drills
from train.cli import job as jobs
from train.cli import logs, playbooks, runs
from train.cli.display import STYLES, one_line
from train.gang import listing, reports
from train.host import faults, records
from train.host import ranks as host_ranks

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STOPPED = 3
EXIT_UNREACHABLE = 4
EXIT_UNWATCHED = 5
EXIT_INTERRUPTED = 130


def failure(outcome: playbooks.Outcome, command: str) -> int:
    """Report a playbook that failed and return the exit code."""
    for line in jobs.failures_of(outcome):
        print(f"python -m train {command}: {line}", file=sys.stderr)
    if outcome.unreachable:
        return EXIT_UNREACHABLE
    return EXIT_FAILED if outcome.code else EXIT_OK


def _checked(
    results: Mapping[str, Any], check: Callable[[Any], dict[str, Any]], command: str
) -> dict[str, dict[str, Any]]:
    """Return what hosts reported, in their order, without what is malformed, which is named."""
    found = {}
    for host, result in sorted(results.items()):
        try:
            found[host] = check(result)
        except reports.ReportError as error:
            told = f"{host}: its answer is passed over: {error}"
            print(f"python -m train {command}: {told}", file=sys.stderr)
    return found


def status(args: argparse.Namespace, variables: dict[str, Any]) -> int:
    """Tell the state of a job's ranks."""
    outcome, told = jobs.status(args.job, args.inventory, variables)
    rows = []
    for host, seen in _checked(told, reports.seen, "status").items():
        rank = seen["rank"] or {"job": None, "task": None}
        state, progress = seen["state"], seen["progress"]
        rows.append(
            {
                "job": rank["job"],
                "task": rank["task"],
                "host": host,
                "phase": state["phase"],
                "reason": state.get("reason") or "",
                "exit_code": state.get("exit_code"),
                "progress": progress,
                "last_line": seen["last_line"],
            }
        )
    rows.sort(key=lambda row: records.task_order(row["task"] or ""))
    if args.json:
        print(json.dumps({"ranks": rows}, sort_keys=True))
    else:
        for row in rows:
            name = f"{row['job']} {row['task']}" if row["job"] else "no such job"
            print(f"{name} on {row['host']}: {one_line(row)}")
    return failure(outcome, "status")


def list_jobs(args: argparse.Namespace, variables: dict[str, Any]) -> int:
    """Tell the jobs on the hosts, the newest first."""
    outcome = playbooks.run_playbook("list.yml", args.inventory, variables)
    told = playbooks.first_result(outcome, "jobs")
    found: list[Any] = told.get("jobs", [])
    if args.json:
        print(json.dumps({"jobs": [listing.public(job) for job in found]}, sort_keys=True))
    else:
        _print_table([_row(job) for job in found])
    return failure(outcome, "list")


_COLUMNS = ("job", "state", "attempt", "ranks", "hosts", "started", "age", "size", "chief at")
_MAX_HOSTS = 3


def _row(job: Mapping[str, Any]) -> dict[str, str]:
    shown = ", ".join(job["hosts"][:_MAX_HOSTS])
    more = len(job["hosts"]) - _MAX_HOSTS
    values = (
        job["job"],
        job["state"],
        str(job["attempt"]),
        f"{job['alive']} of {job['total']}",
        shown + (f" and {more} more" if more > 0 else ""),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(job["started_at"])),
        listing.span(job["age"]),
        listing.size(job["size"]),
        listing.progress(job["progress"]),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _print_table(rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows under their names; on a terminal a state has its colour."""
    if not rows:
        print("no jobs")
        return
    console = Console()
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in _COLUMNS}
    for row in ({name: name for name in _COLUMNS}, *rows):
        line = Text()
        for name in _COLUMNS:
            style = STYLES.get(row[name], "") if name == "state" else ""
            line.append(f"{row[name]:{widths[name]}}", style=style).append("  ")
        line.rstrip()
        console.print(line, soft_wrap=True)


def show_logs(args: argparse.Namespace, variables: dict[str, Any]) -> int:
    """Print the logs of a job's ranks, as they are or as they grow."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know fewer characters
    with _interrupted() as interrupted:
        outcome = logs.show(
            args.inventory,
            {**runs.with_kept(args.job, variables), "train_job_id": args.job},
            task=args.task,
            follow=args.follow,
            lines=args.tail,
            interrupted=interrupted,
            say=lambda text: print(f"python -m train logs: {text}", file=sys.stderr),
        )
    if outcome is None:
        return EXIT_INTERRUPTED
    code = failure(outcome, "logs")
    return EXIT_UNREACHABLE if logs.lost(outcome) else code


@contextmanager
def _interrupted() -> Iterator[Callable[[], bool]]:
    """Note interrupts instead of raising them in the middle of anything; yield whether one came."""
    seen: list[int] = []
    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.signal(signum, lambda s, _: seen.append(s)) for signum in signums}
    try:
        yield lambda: bool(seen)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def stop(args: argparse.Namespace, variables: dict[str, Any]) -> int:
    """End a job on every host, and show the receipts."""
    if not args.job:
        raise ValueError("there is no job to stop: give its id")
    outcome = jobs.stop(args.job, args.inventory, variables)
    results = outcome.results.get("stop", {})
    told = _checked(results, reports.receipt, "stop")
    for host, receipt in told.items():
        print(f"{host}: {receipt_line(receipt)}")
    code = failure(outcome, "stop")
    if told and all(receipt["was"] == host_ranks.ABSENT for receipt in told.values()):
        print(
            f"python -m train stop: no host that answered has a rank of job {args.job}: "
            "`python -m train list` lists the jobs that there are",
            file=sys.stderr,
        )
        code = code or EXIT_FAILED
    return code


def receipt_line(receipt: Mapping[str, Any]) -> str:
    """Return what became of a rank that was to be stopped, as one line of text."""
    if receipt["was"] == host_ranks.ABSENT:
        return "no rank of the job"
    words = [f"{receipt['was']} -> {receipt['phase']}"]
    ended = receipt["ended"]
    named = "process" if ended == 1 else "processes"
    words.append(f"{ended} {named} ended, {len(receipt['remaining'])} left")
    if receipt["port_free"] is not None:
        words.append(f"port {receipt['port']} {'free' if receipt['port_free'] else 'held'}")
    memory = receipt.get("gpu_memory_free")
    if memory is not None:
        words.append(f"GPU memory {'back' if memory else 'held'}")
    return ", ".join(words)


def clean(args: argparse.Namespace, variables: dict[str, Any]) -> int:
    """Remove old jobs from the hosts."""
    given = dict(variables)
    if args.older_than is not None:
        listing.seconds_of(args.older_than)
        given["train_job_clean_older_than"] = args.older_than
    if args.keep is not None:
        given["train_job_clean_keep"] = args.keep
    if not {"train_job_clean_older_than", "train_job_clean_keep"} & set(given):
        raise ValueError("there is no limit to what is removed: give --older-than AGE or --keep N")
    outcome = playbooks.run_playbook("clean.yml", args.inventory, given, check=args.dry_run)
    verb = "would remove" if args.dry_run else "removed"
    results = outcome.results.get("remove_jobs", {})
    for host, result in _checked(results, reports.cleaned, "clean").items():
        removed = result["removed"]
        if removed:
            named = ", ".join(f"{job['job']} ({listing.size(job['size'])})" for job in removed)
            total = listing.size(sum(job["size"] for job in removed))
            print(f"{host}: {verb} {named}: {total}")
        else:
            print(f"{host}: nothing to remove")
        for line in result["kept"]:
            print(f"{host}: kept {line}")
    for line in playbooks.first_result(outcome, "old_jobs").get("kept", []):
        print(f"kept {line}")
    return failure(outcome, "clean")


def drill(args: argparse.Namespace, variables: dict[str, Any]) -> int:
    """Run the drill and print its table."""
    rows = drills.drill(
        args.fault or faults.FAULTS,
        args.inventory,
        variables,
        args.fault_become,
        lambda line: print(line, flush=True),
    )
    table = Table(*drills.HEADER, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row.cells))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    return EXIT_OK if all(drills.is_well(row) for row in rows) else EXIT_FAILED
