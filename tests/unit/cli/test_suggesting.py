"""With which options commands are suggested."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from train.cli import suggesting
from train.cli.ansible_options import AnsibleOptions, default_inventory
from train.gang import REPOSITORY, suggestions


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is not known yet, in the repository, with the default inventory."""
    monkeypatch.setattr(suggestions, "_noted", [])
    monkeypatch.chdir(REPOSITORY)
    for name in ("TRAIN_INVENTORY", "ANSIBLE_INVENTORY"):
        monkeypatch.delenv(name, raising=False)


def test_options_are_kept_as_typed_without_those_of_the_command() -> None:
    words = ["status", "night", "-i", "lab one", "-u", "anna", "-vv", "--ask-become-pass"]
    words += ["-e", "ansible_port=2222", "-e", "ansible_password=hidden", "--json"]
    suggesting.note_typed(words)
    call = suggestions.current()
    assert call.typed == (
        *("-i", "lab one", "--user=anna", "--ask-become-pass", "-e", "ansible_port=2222"),
    )
    assert call.reaching == call.typed
    assert "hidden" not in call.dump()


def test_the_framework_is_passed_on_in_a_form_that_playbooks_know() -> None:
    suggesting.note_typed(["run", "--framework", "jax", "--script", "main.py"])
    assert suggestions.current().typed == ("-e", "train_job_framework=jax")


def test_the_default_inventory_is_named_only_if_it_is_not_that_of_the_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suggesting.note_typed(["list"])
    assert suggestions.current().reaching == ()
    monkeypatch.setenv("TRAIN_INVENTORY", "node-1,")
    suggesting.note_typed(["list"])
    call = suggestions.current()
    # Another terminal may not have the variable.
    assert (call.typed, call.reaching) == ((), ("-i", "node-1,"))
    suggesting.note_typed(["list", "-i", "node-2,"])
    assert suggestions.current().reaching == ("-i", "node-2,")


def test_a_mistake_is_left_to_the_parser() -> None:
    suggesting.note_typed(["list", "-i"])
    assert suggestions.current().typed == ()


def test_a_job_reaches_its_hosts_with_the_options_of_its_start() -> None:
    suggesting.note_typed(["stop", "night", "--user=bob"])
    connection: dict[str, Any] = {
        "inventory": ["node-1,"],
        "options": ["--user=anna"],
        "asked": ["--become-password-file="],
        "variables": {"ansible_port": 2222, "train_job_seed": 1},
    }
    suggesting.note_kept("night", connection)
    call = suggestions.current()
    assert (call.job, call.typed) == ("night", ("--user=bob",))
    assert call.reaching == (
        *("-i", "node-1,", "--user=anna", "--ask-become-pass", "-e", "ansible_port=2222"),
        "--user=bob",  # the last one counts
    )


def test_the_python_api_has_a_call_of_its_arguments() -> None:
    options = AnsibleOptions(("node-1,",), words=("--user=anna",))
    call = suggesting.call_of(options, {"train_job_root": "/data", "train_job_seed": 1})
    assert call.typed == call.reaching
    assert call.typed == ("-i", "node-1,", "--user=anna", "-e", "train_job_root=/data")
    assert suggesting.call_of(AnsibleOptions(default_inventory()), {}).typed == ()
    noted = suggestions.Call(typed=("-i", "lab"))
    suggestions.note(noted)
    assert suggesting.call_of(options, {}) == noted, "that of the command line"


def test_commands_that_run_in_the_repository_have_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("node-1\n")
    words = ["list", "-i", "lab", "--hostfile", "hosts", "-e", "@more.yml", "--private-key", "key"]
    suggesting.note_typed(words)
    assert suggestions.current().reaching == (
        *("-i", f"{tmp_path}/lab", "-i", "node-1,", f"--private-key={tmp_path}/key"),
        *("-e", f"@{tmp_path}/more.yml"),
    )
    printed = suggestions.command("setup")
    assert printed.startswith(f"cd {shlex.quote(str(REPOSITORY))} && ")

    suggesting.note_typed(["status", "night"])
    connection = {"inventory": [f"{tmp_path}/lab"], "options": [], "asked": [], "variables": {}}
    suggesting.note_kept("night", connection)
    assert suggestions.current().reaching == ("-i", f"{tmp_path}/lab")
    monkeypatch.chdir(REPOSITORY)
    connection["inventory"] = [f"{REPOSITORY}/inventory/lab"]
    suggesting.note_typed(["status", "night", "-e", "@inventory/more.yml"])
    suggesting.note_kept("night", connection)
    assert suggestions.current().reaching == ("-i", "inventory/lab", "-e", "@inventory/more.yml")
