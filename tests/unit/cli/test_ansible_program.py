"""The command ``playbook``: the command line and environment of ansible-playbook."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY
from train.cli import playbooks
from train.cli.main import main


class ReplacedError(Exception):
    """Raised instead of replacing the process."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Mapping[str, str]]]:
    """Return the command lines and environments of programs that would replace this process."""
    found: list[tuple[list[str], Mapping[str, str]]] = []

    def execve(path: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        assert path == words[0]
        found.append((list(words), environment))
        raise ReplacedError

    monkeypatch.setattr(os, "execve", execve)
    for name in ("TRAIN_INVENTORY", "ANSIBLE_INVENTORY", "ANSIBLE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return found


Calls = list[tuple[list[str], Mapping[str, str]]]


def test_all_words_after_the_name_are_passed_on(calls: Calls) -> None:
    given = ["-i", "inventory/lab", "-K", "--limit", "node-1", "-e", "{a: [1]}", "--help"]
    with pytest.raises(ReplacedError):
        main(["playbook", "setup", *given])
    ((words, environment),) = calls
    assert words[0].endswith("ansible-playbook")
    assert words[1:] == [str(REPOSITORY / "playbooks/setup.yml"), *given]
    assert environment["ANSIBLE_CONFIG"] == str(REPOSITORY / "ansible.cfg")
    assert environment["PATH"] == playbooks.own_path()


def test_the_users_inventory_and_settings_are_respected(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAIN_INVENTORY", "/srv/lab")
    monkeypatch.setenv("ANSIBLE_CONFIG", "/srv/ansible.cfg")
    for given in ([], ["--inventory=other"], ["-iother"]):
        with pytest.raises(ReplacedError):
            main(["playbook", "teardown", *given])
    assert [words[2:] for words, _ in calls] == [
        ["-i", "/srv/lab"],
        ["--inventory=other"],
        ["-iother"],
    ]
    assert {environment["ANSIBLE_CONFIG"] for _, environment in calls} == {"/srv/ansible.cfg"}


def test_an_unknown_playbook_is_refused(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["playbook", "../bench", "-K"]) == 2
    assert "playbook: no playbook ../bench: choose one of attach, " in capsys.readouterr().err
    assert calls == []


def test_an_installed_collection_comes_before_the_users_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collection = Path("/env/site-packages/ansible_collections/tensorflow_ansible/cluster")
    monkeypatch.setattr(playbooks, "IS_PACKAGED", True)
    monkeypatch.setattr(playbooks, "REPOSITORY", collection)
    monkeypatch.delenv("ANSIBLE_COLLECTIONS_PATH", raising=False)
    first, _, others = playbooks.own_settings()["ANSIBLE_COLLECTIONS_PATH"].partition(":")
    assert first == "/env/site-packages"
    assert others == "~/.ansible/collections:/usr/share/ansible/collections"
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", "/srv/collections")
    assert playbooks.own_settings()["ANSIBLE_COLLECTIONS_PATH"] == f"{first}:/srv/collections"
