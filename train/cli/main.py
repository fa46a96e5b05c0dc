"""The command line: ``python -m train COMMAND``. ``--help`` also lists the exit codes."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from train import VERSION
from train.cli import (
    ansible_options,
    ansible_program,
    background,
    commands,
    controller,
    inventories,
    suggesting,
    tracking,
)
from train.cli.ansible_options import Variables
from train.cli.doctor import PARAMETERS, examine
from train.cli.drill import run_drill
from train.cli.job import named, run_dir_of, with_runs_dir
from train.cli.logs import show
from train.cli.output import PROGRAM, complain, guarded
from train.gang import scratch, suggestions
from train.gang.doctor import PARTS
from train.gang.errors import UserError
from train.gang.packages.requested import NEXT_TO_SCRIPT
from train.gang.run_folders import check_id
from train.host import faults, frameworks, plain_text

#: A command: takes the parsed command line and the variables of ``-e``, returns an exit code.
_Handler = Callable[[argparse.Namespace, Variables], int]


def _count(text: str, least: int = 0) -> int:
    if not plain_text.is_number(text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")
    return int(text)


def _job_id(text: str) -> str:
    try:
        check_id(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"unknown part in {text}: choose from {', '.join(PARTS)}")
    return parts


class _Help(argparse.HelpFormatter):
    """Formats help without options in the usage line, because they are listed below it."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        """Add the usage line."""
        shown = [action for action in actions if not action.option_strings]
        if len(shown) < len(actions):
            shown.insert(0, argparse.Action([], "options", metavar="[options]"))
        super().add_usage(usage, shown, (), prefix)


class _CommandParser(argparse.ArgumentParser):
    """Parses a command line with short error messages, which suggest similar options."""

    commands: Mapping[str, _CommandParser] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Help, **settings)

    def error(self, message: str) -> NoReturn:
        """Print an error and exit."""
        if message.endswith("required: JOB"):
            message += f"; `{suggestions.command('list')}` shows all jobs"
        self.exit(2, f"{self.prog}: {message}\nSee {self.prog} --help\n")

    def refuse(self, unknown: str) -> NoReturn:
        """Reject an unknown argument; suggest a similar option."""
        if not unknown.startswith("-"):
            self.error(f"unexpected argument {unknown}")
        option = unknown.partition("=")[0]
        near = difflib.get_close_matches(option, self._option_string_actions, 1)
        self.error(f"unknown option {option}" + (f": did you mean {near[0]}?" if near else ""))


def build_parser() -> _CommandParser:
    """Return the parser of the command line. Its result has the command's function: ``handler``."""
    parser = _CommandParser(
        prog=PROGRAM,
        description="Train scripts of TensorFlow, JAX or PyTorch on the hosts of an Ansible "
        "inventory. Use COMMAND "
        "--help for the options of a command.",
        epilog="exit codes: 0 success, 1 the job failed, 2 usage error or a host is not ready, 3 "
        "the job was stopped, 4 a host is unreachable, 5 the launcher stopped following "
        "the job, which continues to run, 6 the job completed with doubts and --strict was "
        "given, 130 you left the job running",
    )
    common = _CommandParser(add_help=False)
    ansible_options.add_options(common)
    watching = _CommandParser(add_help=False, parents=[common])
    watching.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    watching.add_argument(
        "--on-interrupt",
        choices=("ask", "leave", "stop"),
        default="ask",
        help="what to do with the job on Ctrl-C (default: ask; without a terminal: leave it "
        "running)",
    )
    text = "return when all ranks have started, and follow the job in the background"
    watching.add_argument("--detach", action="store_true", help=text)
    text = (
        "let this inventory host (default: the chief) watch the job and restart it, even while "
        "this machine is off"
    )
    watching.add_argument("--on", metavar="HOST", nargs="?", const=controller.FIRST, help=text)
    text = "exit with code 6 if the job completes but its success is in doubt"
    watching.add_argument("--strict", action="store_true", help=text)
    text = "log the job to MLflow (see docs/metrics.md)"
    watching.add_argument("--mlflow", metavar="URI", default="", help=text)
    parser.add_argument("--version", action="version", version=f"tensorflow-ansible {VERSION}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, handler: _Handler, text: str, parent: _CommandParser = common
    ) -> Callable[..., argparse.Action]:
        """Add a command, and return the function that adds an argument to it."""
        described = f"{text[0].upper()}{text[1:]}."
        added = subparsers.add_parser(name, parents=[parent], help=text, description=described)
        added.set_defaults(handler=handler)
        return added.add_argument

    run = add("run", commands.run, "start a job and follow it", watching)
    run(
        "--script",
        metavar="FILE",
        help="script, or directory with main.py (default: train/worker.py)",
    )
    text = "run a module, such as trainer.task, from the directory in --script (default: .)"
    run("--module", metavar="NAME", default="", help=text)
    text = "file or folder to copy to the hosts with the script; may be repeated"
    run("--include", metavar="PATH", action="append", default=[], help=text)
    text = "install the packages listed in FILE (default: requirements.txt next to the script)"
    run("--requirements", metavar="FILE", nargs="?", const=NEXT_TO_SCRIPT, default="", help=text)
    text = "framework of the script, or none for any other program (default: tensorflow)"
    run("--framework", choices=frameworks.FRAMEWORKS, default="", help=text)
    run("--job", metavar="NAME", default="", help="job id (default: name of the script and time)")
    run("arguments", nargs="*", metavar="-- ARGS", help="arguments for the script")

    newest = "job id (default: the newest job of this control node)"
    attach = add("attach", commands.attach, "follow a job that is already running", watching)
    restart = add("restart", commands.restart, "restart a job that failed or was stopped", watching)

    status = add("status", commands.show_status, "show the state of a job's ranks")
    status("--json", action="store_true", help="print JSON")

    listed = add("list", commands.list_jobs, "list the jobs on the hosts")
    listed("--json", action="store_true", help="print all jobs as JSON")
    text = "show the N newest jobs (default: 20)"
    listed("-n", "--newest", metavar="N", type=partial(_count, least=1), help=text)
    listed("--all", action="store_true", help="show all jobs")

    logs = add("logs", show, "print the logs of all ranks")
    logs("--task", metavar="TASK", help="only this rank, such as worker-0")
    text = "keep printing new lines until the job ends"
    logs("-f", "--follow", action="store_true", help=text)
    logs("--tail", metavar="N", type=_count, help="start with the last N lines of each rank")

    stop = add("stop", commands.stop_job, "stop a job on all hosts")

    report = add(
        "report", commands.report, "write an HTML report about a job: runs/JOB/report.html"
    )

    compare = add("compare", commands.compare, "compare two jobs")
    for command in (attach, status, logs, report):
        command("job", metavar="JOB", nargs="?", type=_job_id, help=newest)
    for command in (restart, stop, compare):
        command("job", metavar="JOB", type=_job_id, help="job id, as shown by `list`")
    compare("other", metavar="OTHER", type=_job_id, help="id of the other job")
    text = "show all differences, including those between hosts and settings"
    compare("--all", action="store_true", help=text)
    text = "also write an HTML page with curves (default: runs/JOB/compare-OTHER.html)"
    compare("--html", metavar="FILE", nargs="?", const="", help=text)

    tensorboard = add("tensorboard", commands.tensorboard, "start TensorBoard for jobs")
    tensorboard("jobs", metavar="JOB", nargs="*", type=_job_id, help="job ids (default: all jobs)")
    tensorboard("--port", type=_count, default=6006, help="first port to try (default: 6006)")
    text = (
        "show the events already fetched into runs/, with this machine's TensorFlow, without "
        "contacting any host"
    )
    tensorboard("--here", action="store_true", help=text)

    text = "print TF_CONFIG of each rank as JSON, or the variables of another framework"
    tf_config = add("tf-config", commands.tf_config, text)
    tf_config("host", metavar="HOST", nargs="?", help="only for this inventory host")

    doctor = add("doctor", examine, "find problems with the hosts and their network")
    doctor("--quick", action="store_true", help="do not start TensorFlow, and write little to disk")
    text = f"comma-separated parts to examine, from {','.join(PARTS)} (default: all)"
    doctor("--only", metavar="PARTS", type=_parts, help=text)
    text = 'model for the training runs of the part "collectives" (default: mnist-cnn)'
    doctor("--model", choices=PARAMETERS, default="mnist-cnn", help=text)
    text = "examples per step and host in those training runs (default: 64)"
    doctor("--batch", metavar="N", type=partial(_count, least=1), default=64, help=text)
    doctor("--json", action="store_true", help="print JSON")

    text = "serve a page that shows hosts and jobs live"
    dashboard = add("dashboard", commands.dashboard, text)
    text = "port to listen on (default: the first free one from 8787)"
    dashboard("--port", metavar="N", type=partial(_count, least=1), help=text)
    text = "listen on this address instead of 127.0.0.1; requires a password"
    dashboard("--bind", metavar="ADDRESS", default="", help=text)
    text = "file with the password for --bind (default: $TRAIN_DASHBOARD_PASSWORD, or a question)"
    dashboard("--password-file", metavar="FILE", help=text)
    text = "do not offer to stop, restart or start anything"
    dashboard("--read-only", action="store_true", help=text)

    clean = add("clean", commands.clean, "remove old jobs from the hosts")
    clean(
        "--older-than",
        metavar="AGE",
        help="remove jobs that ended longer ago than AGE, such as 12h, 14d or 8w",
    )
    clean("--keep", metavar="N", type=_count, help="keep the N newest jobs")
    clean("--dry-run", action="store_true", help="only show what would be removed")

    text = "run short jobs of TensorFlow on the hosts, inject faults and report the results"
    drill = add("drill", run_drill, text)
    text = f"fault to inject: {', '.join(faults.FAULTS)}; may be repeated (default: all)"
    names = faults.FAULTS
    drill("--fault", metavar="FAULT", action="append", choices=names, default=[], help=text)
    text = "become root only for the faults that need it (port, ssh)"
    drill("--fault-become", action="store_true", help=text)

    text = "run a playbook of this project, such as setup, with ansible-playbook"
    playbook = subparsers.add_parser("playbook", help=text, description=f"{text.capitalize()}.")
    text = f"playbook: {', '.join(ansible_program.names())}"
    playbook.add_argument("playbook", metavar="NAME", help=text)
    text = "options of ansible-playbook, such as -i INVENTORY; they follow the name"
    playbook.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help=text)
    parser.commands = subparsers.choices
    return parser


#: Commands about a job, which need no ``-i`` in the clone that started it, and those that use the
#: newest job of the clone by default.
_ABOUT_A_JOB = ("attach", "restart", "status", "logs", "stop", "report", "tensorboard")
_NEWEST_IF_UNNAMED = ("attach", "status", "logs", "report")


def choose_hosts(args: argparse.Namespace, variables: dict[str, Any]) -> dict[str, Any]:
    """Complete a command about a job, if the job or its inventory was left out.

    Commands that do not require a job then use the newest one. If no inventory is given, the
    inventory and the connection options of the job are used. Other commands are not affected.

    Returns:
        the variables, with those of the connection.

    Raises:
        UserError: no job is named, and none is known here.
    """
    if args.command not in _ABOUT_A_JOB:
        return variables
    found = with_runs_dir(args.inventory, variables)
    runs_dir = run_dir_of("", found)
    job = next(iter(args.jobs), "") if args.command == "tensorboard" else args.job
    if args.command in _NEWEST_IF_UNNAMED and not job:
        job = args.job = inventories.newest(runs_dir, args.inventory)
        if job:
            complain(args.command, f"using job {job}, the newest in {runs_dir}")
        elif args.command != "status":  # status asks the hosts for the newest
            raise UserError(
                f"no job in {runs_dir}: pass a job id; `{suggestions.command('list')}` "
                "shows the jobs on the hosts"
            )
    connection = inventories.kept(runs_dir / job) if job and args.inventory is None else None
    if connection is None:
        return variables
    inventories.apply(args, connection)
    suggesting.note_kept(job, connection)
    return {**connection["variables"], **found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:
        from train.cli import completion

        completion.complete(parser)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal may support fewer characters
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Arguments after the first -- belong to the script.
    cut = given.index("--") if "--" in given else len(given)
    suggesting.note_typed(given[:cut])
    if given and given[0] not in parser.commands:
        for near in difflib.get_close_matches(given[0], parser.commands, 1):
            parser.error(f"unknown command {given[0]}: did you mean {near}?")
    args, unknown = parser.parse_known_args(given[:cut])
    if unknown:
        parser.commands[args.command].refuse(unknown[0])
    script_arguments = given[cut + 1 :]
    if args.command != "run" and script_arguments:
        parser.error(f"{args.command} takes no script arguments")
    if getattr(args, "arguments", None):
        parser.error(f"unknown argument {args.arguments[0]}: put script arguments after --")
    args.arguments = script_arguments
    return guarded(args.command, lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    """Run the command of a parsed command line."""
    if args.command == "playbook":
        ansible_program.execute(args.playbook, args.options)
    variables, encrypted = ansible_options.parse_variables(args.variables)
    if {"-h", "--help"} & set(args.arguments):
        return commands.show_help(args.script, args.module, args.arguments, variables)
    if getattr(args, "mlflow", ""):
        tracking.check(args.mlflow)
    scratch.remove_abandoned()
    if "job" in args:
        args.job = named(args.job or "", variables)
    variables = choose_hosts(args, variables)
    args.allocation = ansible_options.allocation_of(args.inventory)
    if args.allocation and args.allocation.system == "slurm":
        # Needed for the connection plugin srun outside of the Slurm job.
        variables = {"ansible_srun_job_id": args.allocation.job, **variables}
    args.inventory = ansible_options.read_options(args, encrypted)
    variables = with_runs_dir(args.inventory, variables)
    handler: _Handler = background.start if getattr(args, "detach", False) else args.handler
    if getattr(args, "on", None):
        handler = controller.start
    return handler(args, variables)
