"""Which differences between ranks are noticed, and how they are named."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_ranks import TRAIN

RANKS = ("chief-0", "worker-0", "worker-1")


@pytest.fixture
def agreement(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TRAIN)
    return importlib.import_module("training.agreement")


def test_each_option_is_compared_or_local(agreement: Any, tmp_path: Path) -> None:
    given = agreement.Settings()
    own = agreement.terms(given, 10, "abc")
    names = {field.name for field in dataclasses.fields(given)}
    assert set(agreement.LOCAL) < names
    for name in names:
        others = {Path: tmp_path, tuple: (7,), str: "other", bool: True, int: 77, float: 0.77}
        kind = next(kind for kind in others if isinstance(getattr(given, name), kind))
        other = {name: not getattr(given, name) if kind is bool else others[kind]}
        row = agreement.terms(dataclasses.replace(given, **other), 10, "abc")
        line = agreement.disagreement(RANKS, [own, own, row])
        option = f"--{name.replace('_', '-')}"
        begin = f"worker-1 differs from chief-0: {option} "
        assert line.startswith(begin) if name not in agreement.LOCAL else line == ""
    assert agreement.disagreement(RANKS[:1], [own]) == ""


def test_differences_are_named(agreement: Any, tmp_path: Path) -> None:
    def terms(examples: int = 10, data_sha256: str = "abc", **options: Any) -> Any:
        return agreement.terms(agreement.Settings(**options), examples, data_sha256)

    def line(*rows: Any) -> str:
        text: str = agreement.disagreement(RANKS, rows)
        return text.removesuffix(": all ranks need the same options and data")

    first = terms()
    assert line(first, terms(epochs=3, milestones=(1, 2)), first) == (
        "worker-0 differs from chief-0: --epochs 3, not 30; --milestones 1,2, not none"
    )
    assert line(first, terms(9, "def"), terms(9, "def")) == (
        "worker-0 differs from chief-0 (as do worker-1): number of training examples 9, not 10; "
        "SHA-256 of the data def, not abc"
    )
    many = terms(epochs=3, seed=1, ema=0.5, momentum=0.5, patience=2)
    assert line(first, first, many).endswith("; --ema 0.5, not 0.0; and 2 more")
    long = tuple(map(float, range(1000)))
    assert len(line(terms(class_weights=long), first, terms(class_weights=long))) < 200
    # The same file is in different folders.
    rows = []
    for number, text in enumerate(("x = 1", "x = 1", "x = 2")):
        path = tmp_path / str(number) / "own.py"
        path.parent.mkdir()
        path.write_text(text)
        rows.append(terms(data=str(path), model=str(path)))
    assert line(*rows).startswith("worker-1 differs from chief-0: SHA-256 of own.py ")
    assert line(*rows).count(";") == 0
