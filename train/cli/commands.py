"""The commands: functions that take the parsed command line and the variables of ``-e``.

Each command returns its exit code. ``inventory`` in the parsed command line is an AnsibleOptions.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from rich.text import Text

from train.cli import inventories, playbooks, tracking
from train.cli.ansible_options import Variables, absolute
from train.cli.display import STYLES, JsonDisplay, best_display
from train.cli.job import Followed, Job, host_python, run_dir_of, status, stop, with_kept
from train.cli.output import Exit, announce, complain, exit_code, noted_interrupts, print_table
from train.cli.report import compare_jobs, text_of, write_comparison, write_report
from train.cli.watch_lock import WatchedError
from train.cli.watched import WatchedJob
from train.gang import lines, listing, reports, suggestions
from train.gang.errors import UserError
from train.gang.job_records import MANIFEST_FILE, MergedJob, read_result
from train.gang.plan.script_files import WORKER, find_script
from train.gang.scratch import Scratch
from train.host import frameworks, plain_text, records
from train.host.records import ABSENT
from train.host.tensorboard import ADDRESS, start_board

#: The signal with which a command in the terminal lets its background process stop the job.
STOP = signal.SIGUSR1


def run(args: Namespace, variables: Variables) -> int:
    """Start a job and follow it.

    If Slurm has restarted the Slurm job in which this runs, the training job with the same id is
    restarted, unless it has completed.
    """
    given = {"include": args.include, "inventory": args.inventory, "job": args.job}
    given |= {"module": args.module, "requirements": args.requirements}
    given |= {"framework": args.framework}
    chosen = _with_strict(args, variables)
    if args.allocation and args.allocation.restarts and args.job:
        run_dir = run_dir_of(args.job, chosen)
        result = read_result(run_dir)
        if result and result["state"] == "completed":
            complain("run", f"job {args.job} had completed before Slurm restarted its batch job")
            return Exit.COMPLETED
        if (run_dir / MANIFEST_FILE).exists():
            announce("run", f"restarting job {args.job}, because Slurm has restarted its batch job")
            return restart(args, variables)
    return watch(Job.start(args.script, args.arguments, variables=chosen, **given), args)


def show_help(
    script: str | None, module: str, arguments: Sequence[str], variables: Variables
) -> int:
    """Run the script on this machine, without a gang, so that it prints its own help.

    Raise UserError if this machine lacks the ranks' Python.
    """
    default = "." if module else variables.get("train_job_script") or WORKER
    found = find_script(str(script or default), module)
    python, words = Path(sys.executable), [*found.words, *arguments]
    if found.path != WORKER:
        python = host_python(variables)
        if not os.access(python, os.X_OK):
            raise UserError(
                f"cannot show the script's help: this machine has no {python} "
                "(train_job_python). Run it on a host instead: "
                f"{shlex.join([str(python), *words])}"
            )
    return subprocess.run([python, *words], cwd=found.folder, check=False).returncode


def attach(args: Namespace, variables: Variables) -> int:
    """Follow a job that is already running.

    If another command of this control node watches it, show what that command reports.
    """
    chosen = _with_strict(args, variables)

    controller = inventories.controller_of(run_dir_of(args.job, chosen))
    if controller and "channel" not in args:
        complain("attach", f"host {controller} watches the job and restarts it, until it is lost")

    def attached() -> Job:
        return Job.attach(args.job, inventory=args.inventory, variables=chosen)

    try:
        return watch(attached(), args)
    except WatchedError as error:
        if "channel" in args:
            complain("attach", str(error))
            return Exit.COMPLETED if error.watcher.get("background") else Exit.REFUSED
        run_dir = run_dir_of(args.job, chosen)
        about = (error.watcher, args.inventory, chosen)
        return watch(WatchedJob(args.job, run_dir, *about, attached), args)


def restart(args: Namespace, variables: Variables) -> int:
    """Restart a job that has failed or was stopped."""
    chosen = _with_strict(args, variables)
    return watch(Job.restart(args.job, inventory=args.inventory, variables=chosen), args)


def _with_strict(args: Namespace, variables: Variables) -> Variables:
    return {**variables, "train_job_strict": True} if args.strict else variables


def watch(job: Followed, args: Namespace) -> int:
    """Show a job's events until it has a result, and return the exit code.

    If ``args`` has a ``channel``, this process runs in the background.
    """
    channel = getattr(args, "channel", None)
    with noted_interrupts(*([STOP] if channel else [])) as interrupts:
        display = channel.open(job) if channel else best_display(args.json, job.run_dir)
        shown: JsonDisplay | tracking.TrackedDisplay = display
        if args.mlflow:
            shown = tracking.TrackedDisplay(display, args.mlflow, job.run_dir)
        stopping = False
        try:
            while job.result is None:
                for event in job.events():
                    shown.event(event)
                if interrupts:
                    choice, signum = args.on_interrupt, interrupts[-1]
                    if channel:
                        choice = _in_background(choice, interrupts)
                    interrupts.clear()
                    # After other signals there is no user to ask.
                    if choice == "ask" and signum == signal.SIGINT and not stopping:
                        display.pause()
                        choice = _ask(job.name)
                        display.resume()
                    if choice == "stop" and not stopping:
                        stopping = True
                        job.request_stop()
                    elif choice != "continue":
                        job.leave()
            for event in job.events(0.0):
                shown.event(event)
        except BrokenPipeError:
            left = job.leave().message
            _ignore_output()
            complain(args.command, f"the output was closed: {left}")
            return Exit.LEFT
        except KeyboardInterrupt:
            job.leave()  # no Ansible process is left running
            raise
        except Exception as error:  # any error ends the watch, not the job
            left = job.leave().message
            complain(
                args.command, f"stopped following the job: {type(error).__name__}: {error}; {left}"
            )
            return Exit.UNWATCHED
    try:
        if job.result.state != "detached":
            write_report(job.result.run_dir)
    except (FileNotFoundError, ModuleNotFoundError):
        pass  # nothing was started, or this is a host of the cluster, without the package for it
    except Exception as error:  # the page depends on data from hosts; fail no job
        complain(args.command, f"the report could not be written: {type(error).__name__}: {error}")
    job.close()
    try:
        shown.result(job.result)
    except BrokenPipeError:
        _ignore_output()
    doubted = job.result.strict and job.result.state == "completed" and job.result.doubts
    return Exit.DOUBTFUL if doubted else Exit[job.result.state.upper()]


def _in_background(choice: str, signums: Sequence[int]) -> str:
    """Return what to do after signals to a process in the background, where no user is asked.

    ``choice`` is the value of ``--on-interrupt``.
    """
    if STOP in signums:
        return "stop"
    if set(signums) == {signal.SIGHUP}:  # the end of a terminal
        return "continue"
    return "stop" if choice == "stop" else "leave"


def _ignore_output() -> None:
    """Discard further output, because Python would report the closed pipe when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(args: Namespace, variables: Variables) -> int:
    """Write a page about a job, from the job's files on this control node, and print its path."""
    print(write_report(run_dir_of(args.job, variables)))
    return Exit.COMPLETED


def compare(args: Namespace, variables: Variables) -> int:
    """Print the differences between two local jobs, or write them as a page."""
    folders = [run_dir_of(job, variables) for job in (args.job, args.other)]
    found = compare_jobs(*folders)
    if args.html is None:
        print(text_of(found, everything=args.all))
    else:
        default = folders[0] / f"compare-{args.other}.html"
        print(write_comparison(found, Path(args.html or default)))
    return Exit.COMPLETED


def _ask(name: str) -> str:
    """Ask what to do with a job, and return ``leave``, ``stop`` or ``continue``.

    Return ``leave`` if there is no terminal.
    """
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


#: A host's report that has been checked.
_Checked = TypeVar("_Checked")


def _checked(
    reported: playbooks.ByHost, check: Callable[[Any], _Checked], command: str
) -> dict[str, _Checked]:
    """Return the valid reports of hosts, sorted by host; print an error for each invalid one.

    ``check`` validates the report of a host. ``command`` is the command to name in errors.
    """
    found = {}
    for host, result in sorted(reported.items()):
        try:
            found[host] = check(result)
        except reports.ReportError as error:
            complain(command, f"{host}: ignoring a malformed report: {error}")
    return found


def _seen_once(reported: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the host and the report of each rank.

    Two inventory hosts may be the same machine, but each rank is reported only once.
    """
    yielded = set()
    for host, seen in reported.items():
        for report in seen:
            rank = report["rank"]
            key = (rank["place"], rank["rank_dir"]) if rank else host
            if key not in yielded:
                yielded.add(key)
                yield host, report


def show_status(args: Namespace, variables: Variables) -> int:
    """Show the states of a job's ranks."""
    outcome, reported = status(args.job, args.inventory, variables)
    rows: list[dict[str, Any]] = []
    for host, seen in _seen_once(_checked(reported, reports.all_seen, "status")):
        rank, state = seen["rank"] or {}, seen["state"]
        row = {
            "job": rank.get("job"),
            "task": rank.get("task"),
            "host": host,
            "phase": state["phase"],
            "reason": state.get("reason") or "",
            "exit_code": state.get("exit_code"),
            "progress": seen["progress"],
            "last_line": seen["last_line"],
        }
        rows.append(row)
    rows.sort(key=lambda row: records.task_order(row["task"] or ""))
    if args.json:
        print(json.dumps({"ranks": rows}, sort_keys=True))
    else:
        for row in rows:
            name = f"{row['job']} {row['task']}" if row["job"] else "no such job"
            line = lines.line(row["phase"], row["reason"], row["progress"], row["last_line"])
            print(f"{name} on {row['host']}: {line}")
    return _exit_code_of(args, variables, outcome, [row["phase"] for row in rows])


def _exit_code_of(
    args: Namespace, variables: Variables, outcome: playbooks.PlaybookOutcome, phases: Sequence[str]
) -> int:
    """Return the exit code of a command about a job, depending on the ranks' phases.

    Print the errors of the playbook, and a message if no host has a rank of the job.
    """
    code = exit_code(outcome, args.command)
    if args.job and phases and set(phases) == {ABSENT}:
        complain(args.command, _unknown(args, variables))
        return code or Exit.REFUSED
    return code


def _unknown(args: Namespace, variables: Variables) -> str:
    """Return a message that no host has a rank of the job, with a hint where to find the job."""
    connection = inventories.kept(run_dir_of(args.job, variables))
    there = f"`{suggestions.command('list')}` shows all jobs"
    if connection and connection["inventory"] != [*map(absolute, args.inventory.inventory)]:
        there = f"the job was started with {inventories.described(connection)}"
    return f"none of the hosts that answered has a rank of job {args.job}: {there}"


def list_jobs(args: Namespace, variables: Variables) -> int:
    """List the jobs on the hosts, newest first."""
    outcome = playbooks.run_playbook("list.yml", args.inventory, variables)
    found: list[MergedJob] = outcome.result("job_list").get("jobs", [])
    if args.json:
        shown = found[: args.newest] if args.newest else found
        print(json.dumps({"jobs": [listing.public(job) for job in shown]}, sort_keys=True))
    elif found:
        shown = found if args.all else found[: args.newest or _NEWEST]
        print_table(_COLUMNS, [_row(job) for job in shown], width=10_000)
        if len(shown) < len(found):
            print(f"and {len(found) - len(shown)} older jobs (use --all to show all {len(found)})")
    elif not outcome.messages:
        print("no jobs")
    return exit_code(outcome, "list")


_COLUMNS = ("job", "state", "attempt", "ranks", "hosts", "started", "age", "size", "chief at")
_MAX_HOSTS = 3
#: Number of jobs that `list` shows by default.
_NEWEST = 20


def _row(job: MergedJob) -> list[str | Text]:
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
        ", ".join(lines.counts(job["progress"], "step", "epoch")),
    ]


def stop_job(args: Namespace, variables: Variables) -> int:
    """Stop a job on all hosts and show the result for each rank."""
    announce("stop", f"stopping {args.job} on its hosts; ranks have a few seconds to exit cleanly")
    outcome = stop(args.job, args.inventory, variables)
    by_host = _checked(outcome.answers("gang_stop"), reports.stop_reports, "stop")
    stopped = [(host, report) for host, found in by_host.items() for report in found]
    for host, report in stopped:
        print(f"{host}: {lines.stopped(report)}")
    phases = [report["was"] for _, report in stopped]
    given_back = any(report["given_back"] for _, report in stopped)
    return _exit_code_of(args, variables, outcome, [] if given_back else phases)


def tensorboard(args: Namespace, variables: Variables) -> int:
    """Serve TensorBoard until interrupted, for jobs on the hosts or, with --here, for runs/.

    The variables saved at the start of the first job are used.
    """
    if args.jobs:
        variables = with_kept(args.jobs[0], variables)
        del variables["train_job_id"]  # there may be several jobs
    if args.here:
        python, runs_dir = host_python(variables), run_dir_of("", variables)
        for path in (python, *(runs_dir / job for job in args.jobs)):
            path.stat()
        announce("tensorboard", f"starting TensorBoard for {runs_dir}")
        return _tensorboard_here(str(python), str(runs_dir), args.jobs, args.port)
    given = {**variables, "train_job_tensorboard_jobs": args.jobs}
    given["train_job_tensorboard_port"] = args.port
    announce("tensorboard", "searching the hosts for events, then starting TensorBoard on them")
    answered: set[str] = set()
    said: list[str] = []
    ended = False
    with (
        noted_interrupts() as interrupts,
        closing(playbooks.Playbook("tensorboard.yml", args.inventory, given)) as playbook,
    ):
        outcome = playbook.outcome
        while not ended:
            ended = playbook.wait(0.25) or bool(interrupts)
            for line in outcome.take_waiting():
                print(line, file=sys.stderr, flush=True)
            for line in [*outcome.warnings, *outcome.messages]:
                if line not in said:
                    said.append(line)
                    complain("tensorboard", line)
            shown = {} if ended else outcome.result("tensorboard_plan").get("boards", {})
            for host, board in shown.items():
                if host not in answered and _answers(board["url"]):
                    answered.add(host)
                    print(
                        f"TensorBoard on {host}: {board['url']} (press Ctrl-C to stop)", flush=True
                    )
    if outcome.unreachable:
        return Exit.UNREACHABLE
    if outcome.failures:
        return Exit.FAILED if outcome.result("tensorboard_plan") else Exit.REFUSED
    return Exit.COMPLETED


def _tensorboard_here(python: str, runs_dir: str, named: list[str], port: int) -> int:
    path = secrets.token_urlsafe(16)
    url = f"http://{ADDRESS}:{port}/{path}/"
    with noted_interrupts() as interrupts, Scratch("board") as folder:
        output = folder / "output"
        with output.open("wb") as stream:
            board = start_board(python, runs_dir, named, port, path, str(folder), stream)
        shown = False
        while board.poll() is None and not interrupts:
            time.sleep(0.1)
            if not shown and _answers(url):
                shown = True
                print(f"TensorBoard for {runs_dir}: {url} (press Ctrl-C to stop)", flush=True)
        board.terminate()
        board.wait()
        if interrupts:
            return Exit.COMPLETED
        last = output.read_text("utf-8", errors="replace").strip().splitlines()[-1:]
    complain("tensorboard", f"TensorBoard exited: {plain_text.clean(' '.join(last), 500)}")
    return Exit.FAILED


def _answers(url: str) -> bool:
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5).close()
    except (OSError, http.client.HTTPException):
        return False
    return True


def tf_config(args: Namespace, variables: Variables) -> int:
    """Print the variables by which ranks find each other, to start ranks by hand.

    They are printed as JSON for each rank, or for one inventory host: TF_CONFIG, or the variables
    of another framework by name.
    """
    # Any script will do, because only the checks before a start are run.
    given = {"train_job_script": __file__, **variables}
    outcome = playbooks.run_playbook("train.yml", args.inventory, given, check=True)
    planned = outcome.result("gang_plan")
    uses_tf_config = planned.get("framework") == frameworks.TENSORFLOW
    by_host = planned.get("tf_config" if uses_tf_config else "rank_environments", {})
    if args.host and by_host:
        if args.host not in by_host:
            raise ValueError(f"{args.host} has no rank: choose one of {', '.join(by_host)}")
        print(json.dumps(by_host[args.host]))
    else:
        for host, found in by_host.items():
            print(json.dumps({"host": host, **({"TF_CONFIG": found} if uses_tf_config else found)}))
    code = exit_code(outcome, "tf-config")
    return Exit.REFUSED if code == Exit.FAILED else code


def dashboard(args: Namespace, variables: Variables) -> int:
    """Serve the dashboard until interrupted."""
    from train.cli.dashboard import serving  # only this command needs a web server

    return serving.serve(args, variables)


def clean(args: Namespace, variables: Variables) -> int:
    """Remove old jobs from the hosts."""
    given = dict(variables)
    if args.older_than is not None:
        listing.seconds_of(args.older_than)
        given["train_job_clean_older_than"] = args.older_than
    if args.keep is not None:
        given["train_job_clean_keep"] = args.keep
    if not {"train_job_clean_older_than", "train_job_clean_keep"} & set(given):
        raise ValueError("nothing selected for removal: use --older-than AGE or --keep N")
    outcome = playbooks.run_playbook("clean.yml", args.inventory, given, check=args.dry_run)
    cleaned = outcome.results.get("job_remove", {})
    verb = "would remove" if args.dry_run else "removed"
    for host, result in _checked(cleaned, reports.cleaned, "clean").items():
        removed = result["removed"]
        named = ", ".join(f"{job['job']} ({listing.size(job['size'])})" for job in removed)
        total = listing.size(sum(job["size"] for job in removed))
        print(f"{host}: {verb} {named}: {total}" if removed else f"{host}: nothing to remove")
        for line in result["kept"]:
            print(f"{host}: kept {line}")
    for line in outcome.result("job_choice").get("kept", []):
        print(f"kept {line}")
    return exit_code(outcome, "clean")
