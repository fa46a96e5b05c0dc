"""Finds the templates that Ansible renders for each host of a gang."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from train.gang import REPOSITORY

#: Files with tasks that run on each host until the gang has started.
_TASKS = ("roles/train_job/tasks/plan.yml", "roles/train_job/tasks/start.yml")
#: Files of this project with variables of each host.
_VARIABLES = (
    "roles/train_job/defaults/main.yml",
    "roles/train_job/vars/main.yml",
    "playbooks/group_vars/all/train_job.yml",
)
#: The variables that the actions ``gang_check`` and ``gang_stage`` render for each host.
_RENDERED = ("__train_job_check", "__train_job_stage")
#: Files that these actions render for each host.
_FILES = ("roles/train_job/templates/rank.json.j2",)
_NAME = re.compile(r"[a-z_]\w*")
_BLOCKS = ("block", "rescue", "always")
#: The fastest parser that this Python has.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def of_each_host() -> set[str]:
    """Return the templates in the role's tasks for each host, and in variables that they mention.

    Those that actions render are included, those of an inventory are not.
    """
    tasks = (task for path in _TASKS for task in _flat(_read(path)))
    found = {text for task in tasks if not task.get("run_once") for text in _templates(task)}
    variables: dict[str, Any] = {}
    for path in _VARIABLES:
        variables |= _read(path)
    found |= {text for name in _RENDERED for text in _templates(variables[name])}
    found |= {(REPOSITORY / path).read_text(encoding="utf-8") for path in _FILES}
    waiting = list(found)
    while waiting:
        for name in {*_NAME.findall(waiting.pop())} & variables.keys():
            new = {*_templates(variables[name])} - found
            found |= new
            waiting += new
    return found


def _read(path: str) -> Any:
    with (REPOSITORY / path).open(encoding="utf-8") as stream:
        return yaml.load(stream, _Loader)


def _flat(tasks: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the tasks in a list, and its blocks without their tasks, followed by these."""
    for task in tasks:
        yield {key: value for key, value in task.items() if key not in _BLOCKS}
        for block in _BLOCKS:
            yield from _flat(task.get(block, ()))


def _templates(value: Any) -> Iterator[str]:
    """Yield the templates in a value of YAML."""
    if isinstance(value, str):
        if "{{" in value:
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _templates(part)
    elif isinstance(value, list):
        for part in value:
            yield from _templates(part)
