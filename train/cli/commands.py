"""The commands, each a function of the parsed command line and the variables of ``-e``.

``inventory`` of the command line is an AnsibleOptions by then. They return the exit code.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from train.cli import compare as comparing
from train.cli import doctor as doctors
from train.cli import drill as drills
from train.cli import job as jobs
from train.cli import logs, playbooks, tracking
from train.cli import report as reporting
from train.cli import tensorboard as boards
from train.cli.display import STYLES, best_display
from train.cli.events import Variables
from train.gang import lines, listing, reports
from train.gang.doctor import COLLECTIVES, PARTS
from train.gang.plan.ranks import PlanError
from train.gang.plan.staging import WORKER, find_script
from train.gang.records import Job
from train.host import faults, records
from train.host import ranks as host_ranks


class Exit(IntEnum):
    """Exit codes, named for the state in which a job ended; see ``python -m train --help``."""

    COMPLETED = 0
    FAILED = 1
    REFUSED = 2
    STOPPED = 3
    UNREACHABLE = 4
    UNWATCHED = 5
    LEFT = 130


Handler = Callable[[Namespace, Variables], int]
#: Where setup.yml installs TensorFlow, as the role's train_job_python has it.
HOST_PYTHON = "~/train/venv/bin/python"


def complain(command: str, text: str) -> None:
    """Print what is wrong to standard error."""
    print(f"python -m train {command}: {text}", file=sys.stderr)


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Yield a list to which interrupts are added instead of raised in the middle of anything."""
    seen: list[int] = []
    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.signal(signum, lambda s, _: seen.append(s)) for signum in signums}
    try:
        yield seen
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def run(args: Namespace, variables: Variables) -> int:
    """Train, and follow the job."""
    job = jobs.start(
        args.script,
        args.arguments,
        include=args.include,
        inventory=args.inventory,
        job=args.job,
        variables=variables,
    )
    return _watch(job, args)


def show_help(script: str | None, arguments: Sequence[str], variables: Variables) -> int:
    """Have the script itself show how it is used, on this machine and without a gang.

    Raises:
        PlanError: there is no such script, or nothing here to run it with.
    """
    folder, entry = find_script(str(script or variables.get("train_job_script", WORKER)))
    python = Path(sys.executable)
    if folder / entry != WORKER:
        python = Path(variables.get("train_job_python", HOST_PYTHON)).expanduser()
        if not os.access(python, os.X_OK):
            raise PlanError(
                f"the help is the script's, and this machine has no {python} to run it with "
                f"(train_job_python): on a host, {shlex.join([str(python), entry, *arguments])}"
            )
    return subprocess.run([python, entry, *arguments], cwd=folder, check=False).returncode


def attach(args: Namespace, variables: Variables) -> int:
    """Follow a job that runs already."""
    return _watch(jobs.attach(args.job, inventory=args.inventory, variables=variables), args)


def restart(args: Namespace, variables: Variables) -> int:
    """Start a job again that has failed."""
    return _watch(jobs.restart(args.job, inventory=args.inventory, variables=variables), args)


def _watch(job: jobs.Job, args: Namespace) -> int:
    """Show a job to its end."""
    display = best_display(args.json, job.run_dir)
    if args.mlflow:
        display = tracking.TrackedDisplay(display, args.mlflow, job.run_dir)
    interrupted = False
    with _noted_interrupts() as interrupts:
        try:
            while job.result is None:
                for event in job.events():
                    display.event(event)
                if interrupts:
                    choice, signum = args.on_interrupt, interrupts[-1]
                    interrupts.clear()
                    # The other signals leave nobody to answer.
                    if choice == "ask" and signum == signal.SIGINT:
                        display.pause()
                        choice = _ask(job.name)
                        display.resume()
                    if choice == "stop":
                        job.stop()
                    elif choice != "continue":
                        job.leave()
                    interrupted = choice != "continue"
            for event in job.events(0.0):
                display.event(event)
        except (BrokenPipeError, KeyboardInterrupt):
            job.leave()  # no process of Ansible stays behind
            raise
        except Exception as error:  # whatever it is, it ends the watch and not the job
            left = job.leave().message
            complain(args.command, f"the watch has ended: {type(error).__name__}: {error}; {left}")
            return Exit.UNWATCHED
    try:
        reporting.write(job.result.run_dir)
    except FileNotFoundError:
        pass  # nothing was started
    except Exception as error:  # hosts have a part in what it is made of; it fails no job
        complain(args.command, f"no report: {type(error).__name__}: {error}")
    display.result(job.result)
    return Exit.LEFT if interrupted else Exit[job.result.state.upper()]


def report(args: Namespace, variables: Variables) -> int:
    """Write a page about a job, from what is on this control node."""
    print(reporting.write(jobs.run_dir_of(args.job, variables)))
    return Exit.COMPLETED


def compare(args: Namespace, variables: Variables) -> int:
    """Print what differs between two jobs here, or write it as a page."""
    folders = [jobs.run_dir_of(job, variables) for job in (args.job, args.other)]
    found = comparing.compare(*folders)
    if args.html is None:
        print(comparing.text(found))
    else:
        default = folders[0] / f"compare-{args.other}.html"
        print(comparing.write(found, Path(args.html or default)))
    return Exit.COMPLETED


def _ask(name: str) -> str:
    """Ask what to do with the job; without a terminal, leave it running."""
    if not sys.stdin.isatty():
        return "leave"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            answer = input(f"\n{name}: [l]eave it running, [s]top it, [c]ontinue watching? ")
            for word in ("leave", "stop", "continue"):
                if answer.strip() and word.startswith(answer.strip().lower()):
                    return word
    except (KeyboardInterrupt, EOFError):
        return "leave"
    finally:
        signal.signal(signal.SIGINT, before)


def _exit_code(outcome: playbooks.Outcome, command: str) -> int:
    """Report what failed in a playbook and return the exit code."""
    for line in outcome.messages:
        complain(command, line)
    if outcome.unreachable:
        return Exit.UNREACHABLE
    return Exit.FAILED if outcome.code else Exit.COMPLETED


def _checked(
    results: playbooks.ByHost, check: Callable[[Any], dict[str, Any]], command: str
) -> playbooks.ByHost:
    """Return what hosts reported, in their order, without what is malformed, which is named."""
    found = {}
    for host, result in sorted(results.items()):
        try:
            found[host] = check(result)
        except reports.ReportError as error:
            complain(command, f"{host}: its answer is passed over: {error}")
    return found


def status(args: Namespace, variables: Variables) -> int:
    """Show the state of a job's ranks."""
    outcome, results = jobs.status(args.job, args.inventory, variables)
    rows: list[dict[str, Any]] = []
    for host, seen in _checked(results, reports.seen, "status").items():
        rank = seen["rank"] or {"job": None, "task": None}
        state = seen["state"]
        rows.append(
            {
                "job": rank["job"],
                "task": rank["task"],
                "host": host,
                "phase": state["phase"],
                "reason": state.get("reason") or "",
                "exit_code": state.get("exit_code"),
                "progress": seen["progress"],
                "last_line": seen["last_line"],
            }
        )
    rows.sort(key=lambda row: records.task_order(row["task"] or ""))
    if args.json:
        print(json.dumps({"ranks": rows}, sort_keys=True))
    else:
        for row in rows:
            name = f"{row['job']} {row['task']}" if row["job"] else "no such job"
            line = lines.line(row["phase"], row["reason"], row["progress"], row["last_line"])
            print(f"{name} on {row['host']}: {line}")
    code = _exit_code(outcome, "status")
    if args.job and rows and all(row["phase"] == host_ranks.ABSENT for row in rows):
        complain("status", _no_such_job(args.job))
        code = code or Exit.FAILED
    return code


def _no_such_job(job: str) -> str:
    there = "`python -m train list` shows the jobs that there are"
    return f"no host that answered has a rank of job {job}: {there}"


def list_jobs(args: Namespace, variables: Variables) -> int:
    """List the jobs on the hosts, the newest first."""
    outcome = playbooks.run_playbook("list.yml", args.inventory, variables)
    found: list[Job] = outcome.result("jobs").get("jobs", [])
    if args.json:
        print(json.dumps({"jobs": [listing.public(job) for job in found]}, sort_keys=True))
    elif found:
        _print_table(_COLUMNS, [_row(job) for job in found], width=10_000)
    elif not outcome.messages:
        print("no jobs")
    return _exit_code(outcome, "list")


_COLUMNS = ("job", "state", "attempt", "ranks", "hosts", "started", "age", "size", "chief at")
_MAX_HOSTS = 3


def _row(job: Job) -> list[str | Text]:
    shown = ", ".join(job["hosts"][:_MAX_HOSTS])
    more = len(job["hosts"]) - _MAX_HOSTS
    return [
        job["job"],
        Text(job["state"], style=STYLES.get(job["state"], "")),
        str(job["attempt"]),
        f"{job['alive']} of {job['total']}",
        shown + (f" and {more} more" if more > 0 else ""),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(job["started_at"])),
        listing.span(job["age"]),
        listing.size(job["size"]),
        listing.progress(job["progress"]),
    ]


def _print_table(
    header: Sequence[str], rows: Sequence[Sequence[str | Text]], width: int | None
) -> None:
    """Print rows under their header; on a terminal a state has its colour."""
    table = Table(*header, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console(width=width).print(table)


def show_logs(args: Namespace, variables: Variables) -> int:
    """Print the logs of a job's ranks, as they are or as they grow."""
    given = jobs.with_kept(args.job, variables) | {"train_job_logs_follow": args.follow}
    if args.tail is not None:
        given["train_job_logs_lines"] = args.tail
    with _noted_interrupts() as interrupts:
        outcome = logs.show(args.inventory, given, args.task, interrupts, partial(complain, "logs"))
    if outcome is None:
        return Exit.LEFT
    code = _exit_code(outcome, "logs")
    return Exit.UNREACHABLE if outcome.result("fetch_logs").get("lost") else code


def tensorboard(args: Namespace, variables: Variables) -> int:
    """Show TensorBoard of jobs until Ctrl-C."""
    if args.here:
        python = Path(variables.get("train_job_python", HOST_PYTHON)).expanduser()
        return boards.show_fetched(python, jobs.run_dir_of("", variables), args.jobs, args.port)
    given = {
        **variables,
        "train_job_tensorboard_jobs": args.jobs,
        "train_job_tensorboard_port": args.port,
    }
    with _noted_interrupts() as interrupts:
        show, say = partial(print, flush=True), partial(complain, "tensorboard")
        outcome = boards.show(args.inventory, given, interrupts, show, say)
    if outcome.unreachable:
        return Exit.UNREACHABLE
    return Exit.FAILED if outcome.failures else Exit.COMPLETED


def stop(args: Namespace, variables: Variables) -> int:
    """End a job on every host, and show what became of its ranks."""
    outcome = jobs.stop(args.job, args.inventory, variables)
    stopped = _checked(outcome.results.get("stop", {}), reports.stop_report, "stop")
    for host, report in stopped.items():
        print(f"{host}: {stop_line(report)}")
    code = _exit_code(outcome, "stop")
    if stopped and all(report["was"] == host_ranks.ABSENT for report in stopped.values()):
        complain("stop", _no_such_job(args.job))
        code = code or Exit.FAILED
    return code


def stop_line(report: Mapping[str, Any]) -> str:
    """Return a stop report that was checked as one line of text."""
    if report["was"] == host_ranks.ABSENT:
        return "no rank of the job"
    ended = report["ended"]
    words = [
        f"{report['was']} -> {report['phase']}",
        f"{ended} {'process' if ended == 1 else 'processes'} ended",
        f"{len(report['remaining'])} left",
    ]
    if report["port_free"] is not None:
        words.append(f"port {report['port']} {'free' if report['port_free'] else 'held'}")
    if report["gpu_memory_free"] is not None:
        words.append(f"GPU memory {'back' if report['gpu_memory_free'] else 'held'}")
    return ", ".join(words)


def tf_config(args: Namespace, variables: Variables) -> int:
    """Print TF_CONFIG of each rank, or of one inventory host, for those who start it by hand."""
    # Any script will do: the check of a job's start is run, and nothing is started.
    given = {"train_job_script": __file__, **variables}
    outcome = playbooks.run_playbook("train.yml", args.inventory, given, check=True)
    configs: dict[str, object] = outcome.result("plan").get("tf_config", {})
    if args.host and configs:
        if args.host not in configs:
            raise ValueError(f"{args.host} has no rank, there are {', '.join(configs)}")
        print(json.dumps(configs[args.host]))
    else:
        for host, config in configs.items():
            print(json.dumps({"host": host, "TF_CONFIG": config}))
    code = _exit_code(outcome, "tf-config")
    return Exit.REFUSED if code == Exit.FAILED else code


def doctor(args: Namespace, variables: Variables) -> int:
    """Say what is wrong with the hosts and the paths between them."""
    parts = [part for part in args.only or PARTS if part != COLLECTIVES or not args.quick]
    given = {**variables, "train_job_doctor_quick": args.quick, "train_job_doctor_parts": parts}
    outcome = playbooks.run_playbook("doctor.yml", args.inventory, given)
    examined: Any = outcome.result("doctor").get("examined")
    if examined is None:
        code = _exit_code(outcome, "doctor")
        return Exit.UNREACHABLE if code == Exit.UNREACHABLE else Exit.REFUSED
    for line in outcome.warnings:
        complain("doctor", line)
    say = partial(complain, "doctor")
    code = 0
    if COLLECTIVES in parts:
        try:
            examined["scaling"] = doctors.scale(
                examined, args.inventory, variables, say, args.model, args.batch
            )
        except KeyboardInterrupt:
            code = Exit.LEFT
    width = None if sys.stdout.isatty() else 10_000
    # What comes from hosts is no markup.
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    if args.json:
        print(json.dumps(examined, sort_keys=True))
    else:
        _print_table(doctors.HEADER, doctors.rows(examined), width)
        doctors.show(examined, console)
    folder = jobs.run_dir_of("", variables) / "doctor"
    try:
        before = doctors.keep(examined, folder)
        worse = doctors.worse(before, examined) if before else []
        written = doctors.write(examined, worse, folder / doctors.PAGE)
    except OSError as error:
        say(f"nothing is kept: {error}")
    else:
        if not args.json:
            for line in worse:
                console.print(f"since the last time: {line}")
            console.print(f"the page: {written}", soft_wrap=True)
    severities = {one["severity"] for one in examined["findings"]}
    return code or (Exit.REFUSED if "fail" in severities else int("warning" in severities))


def clean(args: Namespace, variables: Variables) -> int:
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
        named = ", ".join(f"{job['job']} ({listing.size(job['size'])})" for job in removed)
        total = listing.size(sum(job["size"] for job in removed))
        print(f"{host}: {verb} {named}: {total}" if removed else f"{host}: nothing to remove")
        for line in result["kept"]:
            print(f"{host}: kept {line}")
    for line in outcome.result("old_jobs").get("kept", []):
        print(f"kept {line}")
    return _exit_code(outcome, "clean")


def drill(args: Namespace, variables: Variables) -> int:
    """Run the drill and print its table."""
    chosen, show = args.fault or faults.FAULTS, partial(print, flush=True)
    rows = drills.drill(chosen, args.inventory, variables, args.fault_become, show)
    width = None if sys.stdout.isatty() else 200
    _print_table(drills.HEADER, [row.cells for row in rows], width)
    return Exit.COMPLETED if all(row.well for row in rows) else Exit.FAILED
