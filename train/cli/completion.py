"""Shell completion of jobs, ranks, playbooks and inventories; argcomplete completes all else."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import argcomplete
from argcomplete.completers import BaseCompleter

from train.cli import ansible_options, ansible_program
from train.cli.job import run_dir_of
from train.gang import REPOSITORY
from train.gang.job_records import MANIFEST_FILE, read_manifest


def complete(parser: argparse.ArgumentParser) -> None:
    """If a shell asks for completions, answer it and end this process."""
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=_Completer())


class _Completer(BaseCompleter):
    """Completes the value of an argument; without a completion, the shell offers files."""

    def __call__(
        self, *, action: argparse.Action, parsed_args: argparse.Namespace, **more: Any
    ) -> Sequence[str]:
        # The input may be incomplete, or a job's folder damaged. A shell cannot show errors here.
        with contextlib.suppress(Exception):
            if action.dest in ("job", "jobs", "other") and not action.option_strings:
                return [manifest.parent.name for manifest in _manifests(parsed_args)]
            if action.dest == "playbook":
                return ansible_program.names()
            if action.dest == "task":
                return _tasks(parsed_args)
            if "--inventory" in action.option_strings:
                return _inventories()
        return []


def _manifests(given: argparse.Namespace) -> list[Path]:
    variables, _ = ansible_options.parse_variables(given.variables)
    return list(run_dir_of("", variables).glob(f"*/{MANIFEST_FILE}"))


def _tasks(given: argparse.Namespace) -> list[str]:
    """Return the ranks of the job, or of the newest job if none is named yet."""
    found = [path for path in _manifests(given) if given.job in (None, path.parent.name)]
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    manifest = read_manifest(newest.parent) if newest else None
    return [rank["task"] for rank in manifest["ranks"]] if manifest else []


def _inventories() -> list[str]:
    """Return the repository's inventories, relative to the current folder if they are below it."""
    folders = sorted(path.parent for path in REPOSITORY.glob("inventory/*/hosts.yml"))
    here = Path.cwd()
    return [os.path.relpath(path) if path.is_relative_to(here) else str(path) for path in folders]
