"""Runs the tasks of a role in this process, so that a test can replace parts of its modules."""

from __future__ import annotations

import importlib
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from tests.support.lab import REPOSITORY

BUILTIN = "ansible.builtin."
OWN = "tensorflow_ansible.cluster."
#: Keys of a task other than its module.
KEYWORDS = {
    *("name", "when", "vars", "register", "loop", "loop_control", "block", "module_defaults"),
    *("until", "retries", "delay"),
}


class TaskFailedError(Exception):
    """A task has failed."""


class RoleInProcess:
    """One run of a role on this machine, with its actual defaults, variables and tasks.

    It supports the modules that the role tensorflow uses, as far as that role needs them.
    """

    def __init__(
        self,
        role: str,
        variables: Mapping[str, Any],
        capsys: pytest.CaptureFixture[str],
        check_mode: bool = False,
    ) -> None:
        self.role, self.folder = role, REPOSITORY / "roles" / role
        self.check_mode, self.capsys = check_mode, capsys
        self.variables: dict[str, Any] = {
            **self._load(self.folder / "defaults/main.yml"),
            **self._load(self.folder / "vars/main.yml"),
            "ansible_check_mode": check_mode,
            "ansible_playbook_python": "python3",
            "inventory_hostname": "here",
            "omit": "__omitted__",
            "playbook_dir": str(REPOSITORY),
            "role_path": str(self.folder),
            **variables,
        }
        self.changed: list[str] = []  # names of tasks
        self.messages: list[str] = []
        self.diffs: list[dict[str, Any]] = []

    def run(self, entry: str = "main.yml") -> None:
        """Run a task file; raise TaskFailedError with the message of the first failed task."""
        for task in self._load(self.folder / "tasks" / entry):
            self._run(task, {}, {})

    def _load(self, path: Path) -> Any:
        return DataLoader().load_from_file(str(path), trusted_as_template=True)

    def _run(
        self, task: Mapping[str, Any], outer_vars: Mapping[str, Any], outer_defaults: dict[str, Any]
    ) -> None:
        variables = {**outer_vars, **task.get("vars", {})}
        defaults = {**outer_defaults, **task.get("module_defaults", {})}
        templar = Templar(loader=DataLoader(), variables={**self.variables, **variables})
        conditions = task.get("when", [])
        for condition in conditions if isinstance(conditions, list) else [conditions]:
            if not templar.evaluate_conditional(condition):
                if "register" in task:
                    self.variables[task["register"]] = {"skipped": True, "changed": False}
                return
        if "block" in task:
            for inner in task["block"]:
                self._run(inner, variables, defaults)
            return
        (module,) = (key for key in task if key not in KEYWORDS)
        for item in templar.template(task.get("loop", [None])):
            templar = Templar(
                loader=DataLoader(), variables={**self.variables, **variables, "item": item}
            )
            given = templar.template(task[module])
            if isinstance(given, dict):
                given = {**templar.template(defaults.get(module, {})), **given}
                given = {k: v for k, v in given.items() if v != "__omitted__"}
            name = module.removeprefix(BUILTIN).removeprefix(OWN)
            result = self._call(name, given, task, templar)
            if result.get("changed"):
                self.changed.append(task["name"])
            if result.get("diff"):
                self.diffs.append(result["diff"])
        if "register" in task:
            self.variables[task["register"]] = result
        if result.get("failed"):
            raise TaskFailedError(result["msg"])

    def _call(
        self, module: str, given: Any, task: Mapping[str, Any], templar: Templar
    ) -> dict[str, Any]:
        result: dict[str, Any] = {"changed": False}
        if module in ("import_tasks", "include_tasks"):
            self.run(given)
        elif module == "set_fact":
            self.variables.update(given)
        elif module == "debug":
            self.messages.append(given["msg"])
        elif module == "fail":
            result.update(failed=True, msg=given["msg"])
        elif module == "assert":
            conditions = task[BUILTIN + module]["that"]
            conditions = conditions if isinstance(conditions, list) else [conditions]
            good = all(templar.evaluate_conditional(trust_as_template(str(c))) for c in conditions)
            result.update(failed=not good, msg=given["fail_msg"])
        elif module == "copy":
            target = Path(given["dest"])
            if str(given["dest"]).endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
                target /= Path(given["src"]).name
            shutil.copy(given["src"], target)
            target.chmod(int(given["mode"], 8))
        elif module == "unarchive":
            with tarfile.open(given["src"]) as archive:
                archive.extractall(given["dest"], filter="data")
        else:
            own = REPOSITORY / "plugins/modules" / f"{module}.py"
            ours = f"ansible_collections.{OWN}plugins.modules"
            name = ours if own.exists() else "ansible.modules"
            result = self._module(importlib.import_module(f"{name}.{module}"), given)
        return result

    def _module(self, module: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {**given, "_ansible_check_mode": self.check_mode, "_ansible_diff": True}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(self.capsys.readouterr().out.splitlines()[-1])
        return result
