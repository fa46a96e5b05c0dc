"""What playbooks would report, for commands that are called in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from train.cli import playbooks
from train.cli.playbooks import PlaybookOutcome

#: Sets the results by action and host, and further fields of the outcome; returns the calls.
Answers = Callable[..., list[tuple[str, dict[str, Any], bool]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """A function that sets what every playbook reports, and returns the calls that are made."""
    monkeypatch.delattr("ansible_runner.run_async")

    def set_answers(
        results: dict[str, dict[str, Any]], code: int = 0, **more: Any
    ) -> list[tuple[str, dict[str, Any], bool]]:
        calls: list[tuple[str, dict[str, Any], bool]] = []

        def run(name: str, _: Any, variables: Any, check: bool = False) -> PlaybookOutcome:
            calls.append((name, dict(variables), check))
            return PlaybookOutcome(code=code, results=results, **more)

        monkeypatch.setattr(playbooks, "run_playbook", run)
        return calls

    return set_answers
