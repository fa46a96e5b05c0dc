"""The inventory of a command without ``-i``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from train.cli import inventories
from train.cli.ansible_options import AnsibleOptions, default_inventory, options_of
from train.gang import REPOSITORY


def job_folder(runs: Path, name: str, created_at: float, *inventory: str) -> Path:
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"job": name, "created_at": created_at}))
    inventories.keep(folder, AnsibleOptions(inventory), {})
    return folder


def test_the_connection_is_kept_without_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--user=train", "--verbose", "--extra-vars=@/secrets.yml", "--private-key=/k")
    passwords = (("--become-password-file=", "hidden"),)
    options = AnsibleOptions(("lab",), words=words, passwords=passwords)
    variables = {"ansible_port": 2222, "ansible_password": "hidden", "train_job_seed": 1}
    inventories.keep(tmp_path, options, variables)
    path = tmp_path / inventories.CONNECTION_FILE
    assert "hidden" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    connection = inventories.kept(tmp_path)
    assert connection == {
        "inventory": [str(tmp_path / "lab")],
        "options": ["--user=train", "--private-key=/k"],
        "asked": ["--become-password-file="],
        "variables": {"ansible_port": 2222},
    }
    assert inventories.described(connection) == (
        f"-i {tmp_path}/lab --user=train --private-key=/k --ask-become-pass"
    )
    with pytest.raises(ValueError, match="which are not stored"):
        inventories.options_for(tmp_path, None)


def test_the_options_of_the_command_line_win() -> None:
    args = argparse.Namespace(inventory=None, ansible=["--user=me"], ask_become_pass=False)
    connection = {
        "inventory": ["/lab"],
        "options": ["--user=train"],
        "asked": ["--become-password-file=", "--vault-id=lab@"],
    }
    inventories.apply(args, connection)
    assert args.inventory == ["/lab"]
    assert args.ansible == ["--user=train", "--user=me", "--vault-id=lab@prompt"]
    assert args.ask_become_pass


@pytest.mark.parametrize("text", ["", "[]", '{"inventory": []}', '{"inventory": "x"}', "{"])
def test_a_damaged_record_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / inventories.CONNECTION_FILE).write_text(text)
    assert inventories.kept(tmp_path) is None


def test_the_newest_job_of_an_inventory(tmp_path: Path) -> None:
    job_folder(tmp_path, "late", 2.0, "10.0.0.1,")
    job_folder(tmp_path, "early", 1.0, "/lab")
    assert inventories.newest(tmp_path) == "late"
    assert inventories.newest(tmp_path, ["/lab"]) == "early"
    assert inventories.newest(tmp_path, ["/other"]) == ""
    assert inventories.newest(tmp_path / "nothing") == ""


def test_the_default_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAIN_INVENTORY", "ANSIBLE_INVENTORY"):
        monkeypatch.delenv(name, raising=False)
    assert default_inventory() == (str(REPOSITORY / "inventory/local"),)
    monkeypatch.setenv("ANSIBLE_INVENTORY", "/a,/b")
    assert default_inventory() == ("/a", "/b")
    monkeypatch.setenv("TRAIN_INVENTORY", "10.0.0.1,")
    assert options_of(None).inventory == ("10.0.0.1,",)
    assert options_of("/lab").inventory == ("/lab",)


def test_the_host_that_watches_is_kept_until_it_is_forgotten(tmp_path: Path) -> None:
    inventories.keep(tmp_path, AnsibleOptions(("lab",)), {}, controller="w0")
    assert inventories.controller_of(tmp_path) == "w0"
    inventories.forget_controller(tmp_path)
    assert inventories.controller_of(tmp_path) == ""
    assert inventories.kept(tmp_path) is not None
    inventories.forget_controller(tmp_path / "nothing")
    assert inventories.controller_of(tmp_path / "nothing") == ""
