"""The claim of one control node on an attempt, in the job's folder on a host."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from train.host import staging
from train.host.call_types import CallError

MANIFEST: dict[str, Any] = {"job": "night-1", "attempt": 2, "attempts": [{"claim": "mine"}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the claim's file, which does not exist yet."""
    folder = tmp_path / "jobs/night-1"
    folder.mkdir(parents=True)
    return folder / "attempt-2.claim"


def claim(path: Path) -> None:
    staging.claim(str(path.parent), MANIFEST)


@pytest.mark.parametrize("mark", ["mine", "another's"])
def test_a_claim_that_is_being_written_is_waited_for(path: Path, mark: str) -> None:
    path.touch()  # created by another rank of the machine, which has not written it yet
    writer = threading.Timer(0.2, path.write_text, [mark])
    writer.start()
    if mark == "mine":
        claim(path)
    else:
        with pytest.raises(
            CallError, match="another control node already started attempt 2 of job"
        ):
            claim(path)
    writer.join()
    assert path.read_text() == mark


def test_a_claim_without_a_start_is_void_after_a_while(path: Path) -> None:
    path.write_text("another's")
    with pytest.raises(CallError, match="another control node"):
        claim(path)
    long_ago = time.time() - staging.CLAIM_S - 1
    os.utime(path, (long_ago, long_ago))
    claim(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("argv", "environment", "message"),
    [
        (["main.py", 3], {}, "argument 1 of the script is not a valid string"),
        (["main.py", "a\0b"], {}, "argument 1 of the script is not a valid string"),
        (["main.py"], {"A": 4}, "A is not a valid string (int): quote the value"),
        (["main.py"], {"A": "hidden\0"}, "train_job_environment: A is not a valid string (str)"),
        (["main.py"], {"A=B": "hidden"}, "contains 'A=B', which is not a valid variable name"),
        (["main.py"], {"": "hidden"}, "contains '', which is not a valid variable name"),
    ],
)
def test_what_no_process_can_be_started_with(
    argv: list[Any], environment: dict[str, Any], message: str
) -> None:
    spec: Any = {"argv": argv, "environment": environment}
    with pytest.raises(CallError, match=re.escape(message)) as refused:
        staging.check_texts(spec)
    assert "hidden" not in str(refused.value)
    sound: Any = {"argv": ["main.py", ""], "environment": {"A": ""}}
    staging.check_texts(sound)


def test_a_script_is_not_started_without_the_environment_that_it_was_started_with() -> None:
    manifest = {"environment_names": ["DATA", "TOKEN", "RANK"], "environment_differs": ["RANK"]}
    staging.check_environment({"DATA": "/data", "TOKEN": ""}, manifest)
    with pytest.raises(CallError, match="was started with TOKEN in train_job_environment, but"):
        staging.check_environment({"DATA": "/data"}, manifest)
