"""The command line: ``python -m train COMMAND``, see ``--help``.

Exit codes: 0 the job completed (or the command did what it was asked), 1 the job failed, 2 bad
usage or a host that is not ready (nothing was started), 3 the job was stopped, 4 a host does not
answer, 5 the watch ended and left the job running, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from train.cli import ansible_options
from train.cli import commands as host_commands
from train.cli import job as jobs
from train.cli.commands import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    EXIT_UNREACHABLE,
    EXIT_UNWATCHED,
    EXIT_USAGE,
)
from train.cli.display import Display, JsonDisplay, LiveDisplay, PlainDisplay
from train.gang.plan.staging import WORKER, find_script
from train.host import faults

_EXITS = {
    "completed": EXIT_OK,
    "failed": EXIT_FAILED,
    "refused": EXIT_USAGE,
    "stopped": EXIT_STOPPED,
    "unreachable": EXIT_UNREACHABLE,
    "left": EXIT_INTERRUPTED,
    "unwatched": EXIT_UNWATCHED,
}
#: Where setup.yml installs TensorFlow, as the role's train_job_python has it.
HOST_PYTHON = "~/train/venv/bin/python"


class _Reader(yaml.SafeLoader):
    """Reads YAML, in which Ansible alone knows what has a tag, such as ``!vault``."""


class _Tagged:
    """Stands for a value that has a tag."""


_Reader.add_multi_constructor("!", lambda loader, suffix, node: _Tagged())


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, _Tagged)


def parse_variables(given: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return what ``-e`` options say: ``NAME=VALUE``, a YAML or JSON object, ``@FILE``.

    Returns:
        The variables, and the files of which Ansible has to decrypt all or some.

    Raises:
        ValueError: an option is none of these, or the file cannot be read.
    """
    variables: dict[str, Any] = {}
    encrypted: list[str] = []
    for text in given:
        if text.startswith(("@", "{")):
            try:
                source = Path(text[1:]).expanduser().read_text("utf-8") if text[0] == "@" else text
                if text[0] == "@" and source.startswith("$ANSIBLE_VAULT;"):
                    encrypted.append(text[1:])
                    continue
                loaded = yaml.load(source, _Reader)
            except (OSError, yaml.YAMLError) as error:
                raise ValueError(f"-e {text}: {error}") from error
            if not isinstance(loaded, dict):
                raise ValueError(f"-e {text}: it holds no variables, NAME: VALUE")
            plain = {name: value for name, value in loaded.items() if _is_plain(value)}
            variables.update(plain)
            if len(plain) < len(loaded):
                if text[0] == "{":
                    raise ValueError(f"-e {text}: what has a tag such as !vault goes into a file")
                encrypted.append(text[1:])
        else:
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(
                    f"-e {text}: give NAME=VALUE, with a NAME of letters, digits and _"
                )
            variables[name] = yaml.safe_load(value) if value[:1] in ("[", "{") else value
    return variables, encrypted


def _show_help(script: str | None, arguments: Sequence[str], variables: Mapping[str, Any]) -> int:
    """Let the script itself say how it is used, on this machine and without a gang.

    Raises:
        PlanError: there is no such script, or nothing here to run it with.
    """
    folder, entry = find_script(str(script or variables.get("train_job_script", WORKER)))
    python = Path(sys.executable)
    if folder / entry != WORKER:
        python = Path(variables.get("train_job_python", HOST_PYTHON)).expanduser()
        if not os.access(python, os.X_OK):
            raise jobs.PlanError(
                f"the help is the script's, and this machine has no {python} to run it with "
                f"(train_job_python): on a host, {shlex.join([str(python), entry, *arguments])}"
            )
    return subprocess.run([python, entry, *arguments], cwd=folder, check=False).returncode


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m train",
        description="Trains TensorFlow scripts on the hosts of an Ansible inventory.",
        epilog="exit codes: 0 done, 1 the job failed, 2 bad usage or a host that is not ready, "
        "3 stopped, 4 a host does not answer, 5 the watch ended and left the job running, "
        "130 interrupted",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        *("-e", "--extra-vars"),
        dest="variables",
        metavar="VAR=VALUE",
        action="append",
        default=[],
        help="a variable of the roles, or @FILE with several; may be repeated",
    )
    ansible_options.add_options(common)
    watching = argparse.ArgumentParser(add_help=False)
    watching.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    watching.add_argument(
        "--on-interrupt",
        choices=("ask", "leave", "stop"),
        default="ask",
        help="what Ctrl-C does with the job (default: ask; without a terminal: leave)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", parents=[common, watching], help="train, and follow the job")
    run.add_argument(
        "--script", metavar="FILE", help="script or directory (default: train/worker.py)"
    )
    run.add_argument(
        "--include",
        metavar="PATH",
        action="append",
        default=[],
        help="file or folder to stage beside the script; may be repeated",
    )
    run.add_argument("--job", metavar="NAME", default="", help="id of the job (default: made)")
    run.add_argument("arguments", nargs="*", metavar="-- ARGS", help="arguments of the script")
    attach = commands.add_parser(
        "attach", parents=[common, watching], help="follow a job that runs already"
    )
    attach.add_argument("job", metavar="JOB")
    restart = commands.add_parser(
        "restart", parents=[common, watching], help="start a job again that has failed"
    )
    restart.add_argument("job", metavar="JOB")
    _add_host_commands(commands, common)
    return parser


def _count(text: str) -> int:
    """Return a number that is not below 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is no number, the limit is 0 or more")
    return int(text)


def _add_host_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands that follow no job of the user's; see commands.py."""
    status = commands.add_parser("status", parents=[common], help="tell the state of a job's ranks")
    status.add_argument("job", metavar="JOB", nargs="?", default="", help="(default: the newest)")
    status.add_argument("--json", action="store_true", help="JSON instead of lines")
    status.set_defaults(handler=host_commands.status)
    listed = commands.add_parser("list", parents=[common], help="tell the jobs on the hosts")
    listed.add_argument("--json", action="store_true", help="JSON instead of a table")
    listed.set_defaults(handler=host_commands.list_jobs)
    logs = commands.add_parser("logs", parents=[common], help="print the logs of all ranks")
    logs.add_argument("job", metavar="JOB")
    logs.add_argument("--task", metavar="TASK", help="only this rank's, such as worker-0")
    logs.add_argument(
        "-f", "--follow", action="store_true", help="go on until the job has ended, or Ctrl-C"
    )
    logs.add_argument(
        "--tail", metavar="N", type=_count, help="begin with the last N lines of each rank"
    )
    logs.set_defaults(handler=host_commands.show_logs)
    stop = commands.add_parser("stop", parents=[common], help="end a job on every host")
    stop.add_argument("job", metavar="JOB")
    stop.set_defaults(handler=host_commands.stop)
    clean = commands.add_parser("clean", parents=[common], help="remove old jobs from the hosts")
    clean.add_argument(
        "--older-than", metavar="AGE", help="those that ended longer ago: 12h, 14d, 8w"
    )
    clean.add_argument(
        "--keep", metavar="N", type=_count, help="those that are not among the N newest"
    )
    clean.add_argument("--dry-run", action="store_true", help="only tell what would go")
    clean.set_defaults(handler=host_commands.clean)
    drill = commands.add_parser(
        "drill",
        parents=[common],
        help="run short jobs on the hosts, inject faults and report the outcome",
    )
    drill.add_argument(
        "--fault",
        metavar="FAULT",
        action="append",
        choices=faults.FAULTS,
        default=[],
        help=f"one of {', '.join(faults.FAULTS)}; may be repeated (default: all)",
    )
    drill.add_argument(
        "--fault-become",
        action="store_true",
        help="become root for the faults that need it (port, ssh), and for nothing else",
    )
    drill.set_defaults(handler=host_commands.drill)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = build_parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    # What follows the first -- belongs to the script, whatever it looks like.
    script_arguments: list[str] = []
    if "--" in given:
        cut = given.index("--")
        given, script_arguments = given[:cut], given[cut + 1 :]
    args = parser.parse_args(given)
    if script_arguments or getattr(args, "arguments", None):
        if args.command != "run":
            parser.error(f"{args.command} takes no arguments of a script")
        if args.arguments:
            parser.error(f"unknown argument {args.arguments[0]}: put the script's after --")
    try:
        variables, encrypted = parse_variables(args.variables)
        if args.command == "run" and {"-h", "--help"} & set(script_arguments):
            return _show_help(args.script, script_arguments, variables)
        args.inventory = ansible_options.read_options(args, encrypted)
        if args.command == "run":
            started = jobs.start(
                args.script,
                script_arguments,
                include=args.include,
                inventory=args.inventory,
                job=args.job,
                variables=variables,
            )
            return _watch(started, args)
        if args.command == "attach":
            return _watch(
                jobs.attach(args.job, inventory=args.inventory, variables=variables), args
            )
        if args.command == "restart":
            return _watch(
                jobs.restart(args.job, inventory=args.inventory, variables=variables), args
            )
        return int(args.handler(args, variables))
    except (jobs.PlanError, ValueError) as error:
        print(f"python -m train {args.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except OSError as error:
        told = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"python -m train {args.command}: {told}", file=sys.stderr)
        return EXIT_USAGE


class _Interrupts:
    """Counts interrupts instead of raising them in the middle of anything."""

    def __init__(self) -> None:
        self.count = 0
        self.asked = False

    def __enter__(self) -> _Interrupts:
        self._before = {
            signum: signal.signal(signum, self._take)
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        return self

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1
        self.asked = signum == signal.SIGINT  # the others leave nobody to answer

    def __exit__(self, *exception: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)


def _watch(job: jobs.Job, args: argparse.Namespace) -> int:
    """Show a job to its end."""
    display: Display
    if args.json:
        display = JsonDisplay()
    elif sys.stdout.isatty():
        display = LiveDisplay()
    else:
        display = PlainDisplay()
    result: jobs.Result | None = None
    with _Interrupts() as interrupts:
        try:
            while not job.ended and result is None:
                for event in job.events():
                    display.event(event)
                if interrupts.count:
                    interrupts.count = 0
                    choice = args.on_interrupt
                    if choice == "ask" and interrupts.asked:
                        display.pause()
                        choice = _ask(job.name)
                        display.resume()
                    if choice == "stop":
                        result = job.stop()
                    elif choice != "continue":
                        result = job.leave()
            for event in job.events(0.0):
                display.event(event)
        except (BrokenPipeError, KeyboardInterrupt):
            job.leave()  # no process of Ansible stays behind
            raise
        except Exception as error:  # whatever it is, it ends the watch and not the job
            left = job.leave()
            told = f"the watch has ended: {type(error).__name__}: {error}; {left.message}"
            print(f"python -m train {args.command}: {told}", file=sys.stderr)
            return EXIT_UNWATCHED
        interrupted = result is not None
        if result is None:
            result = job.close()
    display.result(result)
    return EXIT_INTERRUPTED if interrupted else _EXITS[result.state]


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
