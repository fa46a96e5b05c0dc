"""What the commands share: exit codes, messages, tables and interrupts."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from rich.text import Text

from train.cli.output import Exit, announce, complain, exit_code, noted_interrupts, print_table
from train.cli.playbooks import PlaybookOutcome
from train.gang import login_failures

LOST: dict[str, Any] = {"node-1": login_failures.failure("refused")}


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (PlaybookOutcome(code=0), Exit.COMPLETED),
        (PlaybookOutcome(code=2), Exit.FAILED),
        (PlaybookOutcome(code=4, unreachable=LOST), Exit.UNREACHABLE),
        (PlaybookOutcome(code=0, unreachable=LOST), Exit.UNREACHABLE),
    ],
)
def test_the_exit_code_of_a_playbook(outcome: PlaybookOutcome, code: Exit) -> None:
    assert exit_code(outcome, "list") == code


def test_its_failures_are_messages_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    failures = {"no space": ["node-1", "node-2"], "the gang is not ready": []}
    assert exit_code(PlaybookOutcome(code=2, failures=failures), "list") == 1
    shown = capsys.readouterr()
    assert shown.out == "", "output is for results"
    assert shown.err.splitlines() == [
        "python -m train list: node-1 and node-2: no space",
        "python -m train list: the gang is not ready",
    ]
    complain("stop", "no")
    announce("stop", "stopping")
    assert capsys.readouterr().err == (
        "python -m train stop: no\npython -m train stop: stopping ...\n"
    )


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupts_are_collected_and_later_ones_act_as_before(signum: signal.Signals) -> None:
    before = signal.getsignal(signum)
    with noted_interrupts() as seen:
        os.kill(os.getpid(), signum)
        os.kill(os.getpid(), signum)
        assert seen == [signum, signum]
    assert signal.getsignal(signum) is before
    with pytest.raises(OSError, match="broken"), noted_interrupts():
        raise OSError("broken")
    assert signal.getsignal(signum) is before


def test_a_table_shows_what_hosts_wrote_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[list[str | Text]] = [["[red]x[/red]", Text("failed", style="red")], ["longer", ""]]
    print_table(("job", "state"), rows, width=200)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["job           state", "[red]x[/red]  failed", "longer"]
