"""Runs the repository's playbooks with ansible-runner, always with host keys checked."""

from __future__ import annotations

import contextlib
import locale
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner

from train.cli import suggesting
from train.cli.ansible_options import PASSWORD_FILE, Inventory, Variables, file_of, options_of
from train.gang import (
    IS_PACKAGED,
    REPOSITORY,
    local_command,
    login_failures,
    reports,
    suggestions,
)
from train.gang.job_records import ResultRecord
from train.gang.login_failures import LoginFailure
from train.gang.scratch import Scratch

#: The action that starts ranks: once a task with it has begun, ranks may run on the hosts.
START = "gang_start"
#: The action that watches the ranks, after they were started or found.
WATCH = "gang_watch"
#: Actions whose results may report the end of an attempt or the job.
_ENDS = ("gang_restart", "gang_refusal", "gang_result")
#: Actions that each attempt repeats, and whose results concern only that attempt.
_OF_ATTEMPT = ("gang_packages", "gang_plan")
#: Actions whose result has those of all hosts as ``hosts``.
_OF_EACH_HOST = ("gang_check", "gang_jobs", "gang_stage", "gang_states")
#: The action that fails if hosts did not answer, with their results as ``hosts``.
_ANSWERS = "gang_answers"
#: Results of a task by inventory host.
ByHost = dict[str, dict[str, Any]]

#: Runs ansible-playbook so that it always ends with this process. Otherwise its output would be
#: lost, and users who attach to the job would find that it is already followed.
_BOUND = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


#: Ansible settings that a user's environment may contain: how hosts are reached, and the sources
#: of inventories, passwords and their plugins. Others could change a job or its reports.
_KEPT_SETTINGS = re.compile(
    r"ANSIBLE_(?:"
    r"(?:SSH|SFTP|SCP|PARAMIKO|PERSISTENT|CONNECTION|REMOTE|DOCKER|PODMAN|LIBSSH)_\w+|"
    r"BECOME(?!_ASK_PASS)\w*|(?:SUDO|SU|DOAS|KSU|DZDO|PBRUN|PFEXEC|PMRUN|RUNAS|SESU|MACHINECTL)_\w+|"
    r"INTERPRETER_PYTHON\w*|PYTHON_INTERPRETER|"
    r"VAULT_\w+|HASHI_VAULT_\w+|VARS_\w+|"
    r"INVENTORY_(?:ENABLED|PLUGINS|USE_EXTRA_VARS|CACHE\w*)|"
    r"COLLECTIONS_PATHS?|LOOKUP_PLUGINS|FILTER_PLUGINS|TEST_PLUGINS|"
    r"TRANSPORT|TIMEOUT|PRIVATE_KEY_FILE|PIPELINING|FORKS|EXECUTABLE|HOME|"
    r"SHELL_ALLOW_WORLD_READABLE_TEMP|SYSTEM_TMPDIRS"
    r")"
)
#: Settings that this module or ansible-runner sets.
_SET_HERE = (
    *("ANSIBLE_CALLBACK_PLUGINS", "ANSIBLE_CONFIG", "ANSIBLE_HOST_KEY_CHECKING"),
    *("ANSIBLE_LOCAL_TEMP", "ANSIBLE_RETRY_FILES_ENABLED", "ANSIBLE_STDOUT_CALLBACK"),
)
#: The folders of collections in ansible.cfg, except that of a clone.
_COLLECTIONS = "~/.ansible/collections:/usr/share/ansible/collections"
#: The start of an error in the output of ansible-playbook.
_ERROR = re.compile(r"\[?ERROR\]?\b")
#: Actions that run on this machine for all hosts, or with a message that names the host, by the
#: start of their names. Their failures are not about the host that the task ran for.
_ABOUT_ALL = (
    "gang_",
    "machine_",
    "job_list",
    "job_ranks",
    "job_choice",
    "tensorboard_plan",
    "assert",
    "fail",
)
#: Seconds for which to collect hosts with slow logins into one line.
_TOGETHER_S = 1.0
#: Maximum number of lines of an error to show.
_ERROR_LINES = 20


def foreign_settings(environment: Mapping[str, str]) -> list[str]:
    """Return the names of Ansible settings in an environment that jobs must not use."""
    return [
        name
        for name in environment
        if name.startswith("ANSIBLE_")
        and name.isidentifier()
        and name not in _SET_HERE
        and not _KEPT_SETTINGS.fullmatch(name)
    ]


def usable_locale() -> dict[str, str]:
    """Return environment variables that set a locale that Ansible accepts.

    Return {} if the environment already sets one. Ansible accepts locales that are installed and
    use UTF-8.
    """
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
        if locale.nl_langinfo(locale.CODESET).lower().replace("-", "") == "utf8":
            return {}
    except locale.Error:
        pass
    finally:
        locale.setlocale(locale.LC_ALL, before)
    return {"LC_ALL": "C.UTF-8"}


def own_path() -> str:
    """Return PATH with the folder of this environment's programs first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def ansible_playbook() -> str:
    """Return the path of ansible-playbook."""
    return shutil.which("ansible-playbook", path=own_path()) or "ansible-playbook"


def own_settings() -> dict[str, str]:
    """Return environment variables with which Ansible finds this project's settings and plugins."""
    found = {"ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")}
    if IS_PACKAGED:
        # Otherwise another version of the collection in the user's folder would come first.
        others = os.environ.get("ANSIBLE_COLLECTIONS_PATH") or _COLLECTIONS
        found["ANSIBLE_COLLECTIONS_PATH"] = f"{REPOSITORY.parents[2]}{os.pathsep}{others}"
    return found


def last_lines_of(output: str) -> list[str]:
    """Return the error that ansible-playbook printed, or else its last lines."""
    lines = [line for line in map(reports.bounded, output.splitlines()) if line.strip()]
    first = next((number for number, line in enumerate(lines) if _ERROR.match(line)), None)
    return lines[-3:] if first is None else lines[first : first + _ERROR_LINES]


@dataclass
class PlaybookOutcome:
    """The outcome of a playbook so far."""

    code: int | None = None  # the exit code of ansible-playbook; None while it runs
    #: Hosts by the message of a failed task; empty if the message is not about the task's host.
    failures: dict[str, list[str]] = field(default_factory=dict)
    unreachable: dict[str, LoginFailure] = field(default_factory=dict)  # by host
    waiting: list[str] = field(default_factory=list)  # hosts with slow logins
    waiting_since: float = 0.0  # when the first of them was added (monotonic clock)
    results: dict[str, ByHost] = field(default_factory=dict)  # by action
    #: The role's last report on how the job ended; another attempt may follow.
    ended: ResultRecord | None = None
    is_down: bool = False  # an attempt has failed, and no rank of the next one has started
    # Names of started tasks, and warnings for users, each once. Displays remove those that they
    # have shown.
    tasks: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)  # actions of the tasks that have started
    calling: str = ""  # the last of them
    last_lines: list[str] = field(default_factory=list)  # of the output, once it has ended
    left_running: bool = False  # the watch has ended but the job has not
    stopped: str = ""  # how the job was stopped while it waited: text after its name

    def note_start(self, module: str) -> None:
        """Record the start of a task that uses a module."""
        self.calling = module
        self.called.add(module)
        if module == START:
            self.is_down = False

    def note_end(self, ended: ResultRecord) -> None:
        """Record how an attempt or the job ended, and discard what is known about the attempt."""
        self.ended = ended
        if ended["restart"]:
            self.is_down = True
            self.called.discard(START)
            for action in _OF_ATTEMPT:
                self.results.pop(action, None)
            self.forget_failures()

    def forget_failures(self) -> None:
        """Discard the failures, because the role continues after them."""
        self.failures.clear()
        self.unreachable.clear()

    def note_unreachable(self, results: Mapping[str, Any]) -> None:
        """Note the hosts that cannot be reached according to the results of hosts."""
        for host, result in results.items():
            if result.get("unreachable"):
                self.unreachable[host] = login_failures.of_result(result)

    def note_unanswered(self, results: Mapping[str, Any]) -> None:
        """Note the hosts that did not answer, from their results."""
        self.note_unreachable(results)
        for host, result in results.items():
            if host not in self.unreachable:
                self.failures.setdefault(str(result.get("msg", "")), []).append(host)

    def result(self, action: str) -> dict[str, Any]:
        """Return the result of an action that runs once; empty if it did not run."""
        return next(iter(self.results.get(action, {}).values()), {})

    def answers(self, action: str) -> ByHost:
        """Return the results of all hosts that answered an action that runs once."""
        found = self.result(action).get("hosts") or {}
        return {h: r for h, r in found.items() if not (r.get("unreachable") or r.get("failed"))}

    def take_waiting(self) -> list[str]:
        """Return a line about the hosts with slow logins, if any, and forget these hosts.

        Hosts that were reported at about the same time share a line.
        """
        if time.monotonic() - self.waiting_since < _TOGETHER_S:
            return []
        hosts, self.waiting = self.waiting, []
        return [login_failures.waiting(hosts)] if hosts else []

    @property
    def messages(self) -> list[str]:
        """The messages of all failures, each once; if the playbook crashed, its last lines."""
        unreachable = login_failures.merged(self.unreachable)
        failed = [
            f"{login_failures.names_of(hosts)}: {text}" if hosts else text
            for text, hosts in self.failures.items()
        ]
        broken = "\n".join(["ansible-playbook failed:", *self.last_lines])
        return unreachable + failed or ([broken] if self.code else [])


def module_of(data: Mapping[str, Any]) -> str:
    """Return the short name of the module or action of an event's task."""
    return str(data.get("task_action", "")).rpartition(".")[2]


class Playbook:
    """A run of one of the repository's playbooks in the background.

    ``check`` selects Ansible's check mode. The constructor starts the run, and raises
    FileNotFoundError if an inventory does not exist.
    """

    def __init__(
        self, name: str, inventory: Inventory, variables: Variables, check: bool = False
    ) -> None:
        options = options_of(inventory)
        self._echoes = "--verbose" in options.words
        self.outcome = PlaybookOutcome()
        self._pid: int | None = None
        self._cancelled = False
        self._warned: set[str] = set()
        # A folder that is used again would pass on variables of the previous run.
        self._folder = Scratch("runner")
        self._private = private = self._folder.path
        try:
            given = options.command_line(private)
            (private / "env").mkdir()
            (private / "env/extravars").touch(mode=0o600)
            (private / "env/extravars").write_text(file_of(variables), encoding="utf-8")
        except (OSError, ValueError):
            self._folder.close()
            raise
        path, program = own_path(), ansible_playbook()
        words = [sys.executable, "-S", "-E", "-c", _BOUND, str(os.getpid()), program]
        bound = private / "bin" / "ansible-playbook"
        bound.parent.mkdir()
        # ansible-runner would let the user's callback print the output. With PYTHONUNBUFFERED,
        # Python would read modules that run on this machine byte by byte.
        unset = ["ORIGINAL_STDOUT_CALLBACK", "PYTHONUNBUFFERED", *foreign_settings(os.environ)]
        lines = ["#!/bin/sh", shlex.join(["unset", *unset]), f'exec {shlex.join(words)} "$@"']
        bound.write_text("\n".join([*lines, ""]), encoding="utf-8")
        bound.chmod(0o700)
        self._thread, self._runner = ansible_runner.run_async(
            private_data_dir=str(private),
            project_dir=str(REPOSITORY),
            playbook=str(REPOSITORY / "playbooks" / name),
            cmdline=shlex.join([*given, "--check"] if check else given),
            envvars={
                **usable_locale(),
                suggestions.CALL: suggesting.call_of(options, variables).dump(),
                local_command.CALLER: local_command.caller_environment(os.environ),
                "ANSIBLE_CALLBACK_PLUGINS": "",
                **own_settings(),
                "ANSIBLE_HOST_KEY_CHECKING": "True",
                # Modules and their arguments may be written here.
                "ANSIBLE_LOCAL_TEMP": str(private / "tmp"),
                "PATH": f"{bound.parent}{os.pathsep}{path}",
            },
            settings={"pexpect_timeout": 1},
            event_handler=self._on_event,
            cancel_callback=lambda: self._cancelled,
            quiet=True,
        )

    def _on_event(self, event: dict[str, Any]) -> bool:
        """Process an event of ansible-runner; return False, so that it is not kept on disk."""
        self._pid = event.get("pid") or self._pid
        self._note_waiting(str(event.get("stdout", "")))
        if self._echoes and event.get("stdout"):
            print(event["stdout"], file=sys.stderr)
        data = event.get("event_data", {})
        kind = event.get("event", "")
        if kind == "playbook_on_start":
            self._remove_secrets()
        elif kind == "playbook_on_task_start":
            self.outcome.tasks.append(str(data.get("task", "")))
            self.outcome.note_start(module_of(data))
        elif kind in ("runner_on_failed", "runner_on_unreachable", "runner_on_ok"):
            result = reports.bounded(data.get("res") or {})
            host = str(data.get("host"))
            warnings = result.get("warnings")
            lines = warnings if isinstance(warnings, list) else ()
            for line in map(str, lines):
                if line not in self._warned:
                    self._warned.add(line)
                    self.outcome.warnings.append(line)
            message = str(result.get("msg", "")) or str(result)
            if kind == "runner_on_unreachable":
                self.outcome.unreachable[host] = login_failures.of_result(result)
            elif kind == "runner_on_failed" and module_of(data) == _ANSWERS and "hosts" in result:
                self.outcome.note_unanswered(result["hosts"])
            elif kind == "runner_on_failed":
                self.outcome.left_running |= bool(result.get("left_running"))
                self.outcome.stopped = str(result.get("stopped") or "") or self.outcome.stopped
                if not (data.get("ignore_errors") or result.get("nothing_answered")):
                    hosts = self.outcome.failures.setdefault(message, [])
                    if not module_of(data).startswith(_ABOUT_ALL):
                        hosts.append(host)
            else:
                self.outcome.results.setdefault(module_of(data), {})[host] = result
                if module_of(data) in _OF_EACH_HOST:
                    self.outcome.note_unreachable(result["hosts"])
                if module_of(data) == "gang_refusal":
                    self.outcome.forget_failures()
                if module_of(data) in _ENDS and result.get("result"):
                    self.outcome.note_end(result["result"])
        return False

    def _note_waiting(self, line: str) -> None:
        _, found, host = line.strip().partition(login_failures.WAITING)
        if found and host not in self.outcome.waiting:
            if not self.outcome.waiting:
                self.outcome.waiting_since = time.monotonic()
            self.outcome.waiting.append(reports.bounded(host))

    def _remove_secrets(self) -> None:
        """Remove passwords and variables; ansible-playbook reads them before the first play."""
        for path in (*self._private.glob(f"{PASSWORD_FILE}*"), self._private / "env/extravars"):
            path.unlink(missing_ok=True)

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; return whether the playbook has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self, log: Path | None = None) -> PlaybookOutcome:
        """End the playbook, but no processes on hosts, and return its outcome.

        The output of ansible-playbook is saved in ``log``, if given.
        """
        # TERM makes ansible-playbook end its workers. ansible-runner's own cancellation leaves one
        # orphan per host.
        while self._thread.is_alive():
            if self._pid is None:
                self._cancelled = True  # nothing has started yet
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGTERM)
            self._thread.join(0.5)
        self.outcome.code = self._runner.rc
        with contextlib.suppress(OSError, ansible_runner.AnsibleRunnerException):
            text = self._runner.stdout.read()  # closed if it ended before the first line
            self.outcome.last_lines = last_lines_of(text)
            if log is not None:
                log.write_text(text, encoding="utf-8")
        self._folder.close()
        return self.outcome


def run_playbook(
    name: str, inventory: Inventory, variables: Variables, check: bool = False
) -> PlaybookOutcome:
    """Run a playbook to its end and return its outcome. For the arguments see ``Playbook``.

    An interrupt ends the playbook.
    """
    with contextlib.closing(Playbook(name, inventory, variables, check)) as playbook:
        while not playbook.wait(0.25):
            for line in playbook.outcome.take_waiting():
                print(line, file=sys.stderr, flush=True)
    return playbook.outcome
