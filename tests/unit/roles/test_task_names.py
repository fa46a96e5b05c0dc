"""The names of tasks, their results, and tasks that run once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.lab import REPOSITORY

FILES = [path for path in sorted(REPOSITORY.glob("roles/*/tasks/*.yml")) if path.name != "main.yml"]


def tasks(items: Any) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a list, and those in their blocks."""
    for task in items:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks(task.get(part, []))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_the_name_begins_with_the_file(path: Path) -> None:
    first_word = path.stem.partition("_")[0]
    prefixes = (f"{path.stem.replace('_', ' ')} | ", f"{first_word} | ")
    names = [task["name"] for task in tasks(yaml.safe_load(path.read_text()))]
    assert [name for name in names if not name.lower().startswith(prefixes)] == []


def test_registers_and_facts_are_internal_or_documented() -> None:
    """Results of a role without the prefix ``__`` are documented in its README."""
    for path in sorted(REPOSITORY.glob("roles/*/tasks/*.yml")):
        role = path.parts[-3]
        readme = (REPOSITORY / "roles" / role / "README.md").read_text()
        for task in tasks(yaml.safe_load(path.read_text())):
            names = [task.get("register"), *task.get("ansible.builtin.set_fact", {})]
            for name in filter(None, names):
                assert name.startswith(f"__{role}_") or f"`{name}" in readme, f"{path}: {name}"


def test_a_task_that_runs_once_has_no_condition_about_its_host() -> None:
    """Ansible decides with the first host only whether such a task runs at all."""
    for path in sorted(REPOSITORY.glob("roles/*/tasks/*.yml")):
        for task in tasks(yaml.safe_load(path.read_text())):
            once = task.get("run_once") is True
            assert not (once and "inventory_hostname" in str(task.get("when", ""))), task["name"]


def test_the_files_of_a_start_are_imported_without_a_condition_about_the_host() -> None:
    """They have tasks that run once."""
    for path in (REPOSITORY / "roles/train_job/tasks").glob("*.yml"):
        for task in tasks(yaml.safe_load(path.read_text())):
            imported = str(task.get("ansible.builtin.import_tasks", ""))
            if imported.endswith(("plan.yml", "wait.yml", "start.yml", "watch.yml")):
                assert "inventory_hostname" not in str(task.get("when", "")), task["name"]
