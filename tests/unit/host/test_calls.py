"""The calls that the launcher makes on hosts, ``train.host.calls``."""

from __future__ import annotations

import sys

from tests.support.lab import run
from train.host import calls


def test_each_call_has_a_function_of_its_own() -> None:
    functions = [calls.find(call) for call in calls.CALLS]
    assert all(callable(function) and function.__doc__ for function in functions)
    assert len(set(functions)) == len(functions)


def test_a_host_imports_what_the_call_needs() -> None:
    script = """
import sys
from train.host import calls
names = ("checkup", "links", "staging", "tensorboard")
calls.find("rank_stage")
print(*[name for name in names if "train.host." + name in sys.modules])
"""
    assert run(sys.executable, "-c", script).stdout == "staging\n"
