"""Records of a job on the control node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from train.gang import job_records


def test_a_host_has_the_arguments_of_the_job_or_its_own() -> None:
    manifest: Any = {"arguments": ["--epochs", "5"], "rank_arguments": {"node-1": []}}
    assert job_records.arguments_of(manifest, "node-0") == ["--epochs", "5"]
    assert job_records.arguments_of(manifest, "node-1") == []
    assert job_records.arguments_of({"arguments": ["x"]}, "node-1") == ["x"]


def test_only_the_last_attempt_is_marked_as_staged() -> None:
    planned: Any = {"attempts": [{"attempt": 1, "staged": False}, {"attempt": 2, "staged": False}]}
    marked = job_records.staged(planned)
    assert [attempt["staged"] for attempt in marked["attempts"]] == [False, True]
    assert [attempt["staged"] for attempt in planned["attempts"]] == [False, False]
    assert job_records.staged(marked) is marked


def test_a_folder_without_records_is_one_of_no_job(tmp_path: Path) -> None:
    assert job_records.read_manifest(tmp_path) is None
    assert job_records.read_result(tmp_path / "nowhere") is None
    (tmp_path / "manifest.json").write_text(json.dumps({"job": "night"}))
    (tmp_path / "result.json").write_text(json.dumps({"state": "failed"}))
    assert job_records.read_manifest(tmp_path) == {"job": "night"}
    assert job_records.read_result(tmp_path) == {"state": "failed"}


def test_a_damaged_record_is_an_error_and_not_a_job_without_one(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(ValueError, match=r"manifest\.json is not a JSON object"):
        job_records.read_manifest(tmp_path)
    (tmp_path / "result.json").write_text('{"state": ')
    with pytest.raises(json.JSONDecodeError):
        job_records.read_result(tmp_path)
