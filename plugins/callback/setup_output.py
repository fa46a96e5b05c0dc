"""Output of ``playbooks/setup.yml``: a line for each step that changed hosts, and messages.

With ``-v`` and for all other playbooks, the output is that of Ansible's default callback.
"""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.utils.fqcn import add_internal_fqcns

REPOSITORY = Path(__file__).resolve().parents[2]
# As in plugins/plugin_utils/project.py, which Ansible cannot find yet: a callback is loaded before
# the collections next to the playbook are known.
sys.path.insert(0, str(REPOSITORY))

from train.gang.login_failures import names_of

DOCUMENTATION = """
    name: setup_output
    type: stdout
    short_description: Ansible's default output, but a short one for playbooks/setup.yml
    description:
      - For C(playbooks/setup.yml), prints a line for each play and for each task that changed
        hosts, messages and failures with their hosts, and at least every 20 seconds what is still
        running.
      - For all other playbooks, and with C(-v), prints what the default callback prints.
    extends_documentation_fragment:
      - default_callback
      - result_format_callback
"""

#: The playbook with the short output.
PLAYBOOK = REPOSITORY / "playbooks/setup.yml"
#: The names of the debug module, whose messages are for users.
DEBUG = add_internal_fqcns(("debug",))
#: Seconds without output before a line shows what is still running, and between two checks.
QUIET_S, POLL_S = 15.0, 1.0
#: Minimum seconds of a step whose duration is shown.
LONG_S = 5.0
WIDTH = 80
#: A space at which lines are not broken.
JOINED = "\N{NO-BREAK SPACE}"


class Step:
    """A running task: the hosts on which it runs, those that it changed, and those by message."""

    def __init__(self, task: Any) -> None:
        self.name = task.get_name().rpartition(" : ")[2].strip()
        self.run_once = bool(task.run_once)
        self.began = time.monotonic()
        self.running: list[str] = []
        self.changed: list[str] = []
        #: Hosts by (kind, text); a kind is "message", "FAILED" or "UNREACHABLE".
        self.texts: dict[tuple[str, str], list[str]] = {}

    def add(self, kind: str, text: str, host: str) -> None:
        """Record a message or an error of a host."""
        self.texts.setdefault((kind, text), []).append(host)

    def failed(self) -> bool:
        """Return whether any host has failed or is unreachable."""
        return any(kind != "message" for kind, _ in self.texts)

    def seconds(self) -> float:
        """Return the seconds since the step started."""
        return time.monotonic() - self.began

    def duration(self) -> str:
        """Return the duration as text for users, which is not broken into two lines."""
        return f"({self.seconds():.0f}{JOINED}s)"


def names(hosts: Sequence[str]) -> str:
    """Return host names in natural order: node-2 before node-10."""
    return names_of(sorted(hosts, key=lambda host: (len(host), host)))


def is_rescued(task: Any) -> bool:
    """Return whether the playbook continues after a failure of a task.

    That is the case if a block around the task has a rescue section.
    """
    within = {task._uuid}
    parent = task._parent
    while parent is not None:
        if getattr(parent, "rescue", None) and within & {item._uuid for item in parent.block}:
            return True
        within.add(parent._uuid)
        parent = parent._parent
    return False


def explain(result: dict[str, Any]) -> str:
    """Return the full text of a failed result: the message and the output of a command."""
    if result.get("results") and any(item.get("failed") for item in result["results"]):
        failed = [item for item in result["results"] if item.get("failed")]
        return "\n".join(dict.fromkeys(explain(item) for item in failed))
    message = result.get("msg")
    lines = [str(line) for line in (message if isinstance(message, list) else [message]) if line]
    for name in ("stderr", "module_stderr", "stdout", "module_stdout", "censored"):
        text = str(result.get(name) or "").strip()
        if text and text not in "\n".join(lines):
            lines.append(text)
    return "\n".join(lines) or "no reason given"


def wrapped(text: str, indent: str) -> Iterator[str]:
    """Yield the lines of a text, wrapped at WIDTH characters.

    Long words, such as paths, are not broken. Lines that start with two spaces are commands, and
    are not wrapped.
    """
    for line in text.splitlines():
        lines = [indent + line]
        if not line.startswith("  "):
            lines = textwrap.wrap(
                line,
                WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        yield from (each.replace(JOINED, " ") for each in lines)


class CallbackModule(Default):  # type: ignore[misc]
    """Ansible's default callback, with a shorter output for ``playbooks/setup.yml``."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "setup_output"

    def __init__(self) -> None:
        super().__init__()
        self._short = False
        self._check_mode = False
        self._step: Step | None = None
        self._heading: str | None = None  # of a play without a line so far
        self._printed_at = time.monotonic()
        self._ended = threading.Event()

    # Events of a run

    def v2_playbook_on_start(self, playbook: Any) -> None:
        path = Path(playbook._file_name).resolve()
        self._short = path == PLAYBOOK and self._display.verbosity == 0
        if not self._short:
            super().v2_playbook_on_start(playbook)
            return
        self.set_option("display_ok_hosts", False)
        self.set_option("display_skipped_hosts", False)
        self._ended = threading.Event()
        threading.Thread(target=self._show_life, args=(self._ended,), daemon=True).start()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        if not self._short:
            super().v2_playbook_on_play_start(play)
            return
        self._flush()
        self._play = play
        self._check_mode = bool(play.check_mode)
        self._heading = play.get_name().strip()

    def _task_start(self, task: Any, prefix: str | None = None) -> None:
        super()._task_start(task, prefix)
        if self._short:
            self._flush()
            self._step = Step(task)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        if not self._short:
            super().v2_runner_on_start(host, task)
        elif self._step is not None:
            if self._heading:
                self._print(self._heading)
                self._heading = None
            self._step.running.append(host.get_name())

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if not self._short:
            super().v2_playbook_on_stats(stats)
            return
        self._ended.set()
        if self._step is not None and self._step.failed():
            self._flush()
        # The result of the last step comes last.
        last, self._step = self._step, None
        self._print("PLAY RECAP")
        for host in sorted(stats.processed):
            row = stats.summarize(host)
            counts = {
                "ok": row["ok"],
                "changed": row["changed"],
                "unreachable": row["unreachable"],
                "failed": row["failures"],
            }
            bad = row["failures"] or row["unreachable"]
            text = " ".join(f"{name}={count}" for name, count in counts.items())
            self._print(f"{host} : {text}", constants.COLOR_ERROR if bad else None)
        self._step = last
        self._flush()

    # Results of a task

    def v2_runner_on_ok(self, result: Any) -> None:
        if not self._short:
            super().v2_runner_on_ok(result)
            return
        host = self._end_of(result)
        self._handle_warnings(result.result)
        if self._is_message(result):
            self._add_message(result)
        elif self._step is not None and result.result.get("changed"):
            self._step.changed.append(host)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not self._short:
            super().v2_runner_on_failed(result, ignore_errors)
            return
        host = self._end_of(result)
        self._handle_warnings(result.result)
        if self._step is not None and not ignore_errors and not is_rescued(result.task):
            self._step.add("FAILED", explain(result.result), host)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        if not self._short:
            super().v2_runner_on_unreachable(result)
            return
        host = self._end_of(result)
        if self._step is not None:
            self._step.add("UNREACHABLE", explain(result.result), host)

    def v2_runner_on_skipped(self, result: Any) -> None:
        super().v2_runner_on_skipped(result)
        if self._short:
            self._end_of(result)

    # Changes and failures of loop items are shown with the loop's result, and retries when they
    # have ended.

    def v2_runner_item_on_ok(self, result: Any) -> None:
        if not self._short:
            super().v2_runner_item_on_ok(result)
        elif self._is_message(result):
            self._add_message(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        if not self._short:
            super().v2_runner_item_on_failed(result)

    def v2_runner_retry(self, result: Any) -> None:
        if not self._short:
            super().v2_runner_retry(result)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        if not self._short:
            super().v2_playbook_on_include(included_file)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        self._heading = None
        if not self._short:
            super().v2_playbook_on_no_hosts_matched()

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        if not self._short:
            super().v2_playbook_on_no_hosts_remaining()
            return
        self._flush()
        self._print("No host is left.", constants.COLOR_ERROR)

    # Lines

    @staticmethod
    def _is_message(result: Any) -> bool:
        """Return whether a result is a message for users."""
        whole_loop = "results" in result.result
        return result.task.action in DEBUG and "msg" in result.result and not whole_loop

    def _add_message(self, result: Any) -> None:
        text = result.result["msg"]
        lines = text if isinstance(text, list) else [text]
        if self._step is not None:
            self._step.add("message", "\n".join(map(str, lines)), result.host.get_name())

    def _end_of(self, result: Any) -> str:
        """Return the host of a result, and mark the step as ended on it."""
        host: str = result.host.get_name()
        if self._step is not None and host in self._step.running:
            self._step.running.remove(host)
        return host

    def _print(self, text: str, color: str | None = None, indent: str = "") -> None:
        for line in wrapped(text, indent):
            self._display.display(line, color=color)
        sys.stdout.flush()  # for the reader of a pipe, while a step runs
        self._printed_at = time.monotonic()

    def _flush(self) -> None:
        """Print the results of the last step."""
        step, self._step = self._step, None
        if step is None:
            return
        if step.changed:
            took = f" {step.duration()}" if step.seconds() >= LONG_S else ""
            done = "would change on" if self._check_mode else "changed on"
            text = f"{step.name}: {done} {names(step.changed)}{took}"
            self._print(text, constants.COLOR_CHANGED, "  ")
        for (kind, text), hosts in step.texts.items():
            if kind == "message":
                about = "" if step.run_once else f"{names(hosts)}: "
                self._print(f"{about}{text}", None, "  ")
            else:
                color = constants.COLOR_ERROR if kind == "FAILED" else constants.COLOR_UNREACHABLE
                self._print(f"{kind} {names(hosts)}: {step.name}", color, "  ")
                self._print(text, color, "    ")

    def _show_life(self, ended: threading.Event) -> None:
        """Print at intervals what is still running, until the run has ended."""
        while not ended.wait(POLL_S):
            step = self._step
            if step is not None and time.monotonic() - self._printed_at >= QUIET_S:
                running = list(step.running)
                where = f" on {names(running)}" if running else ""
                left = WIDTH - len(f"  still running{where}:  {step.duration()}")
                name = textwrap.shorten(step.name, max(left, 20), placeholder=" ...")
                self._print(f"still running{where}: {name} {step.duration()}", None, "  ")
