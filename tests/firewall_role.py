"""What the tests of the role ``firewall`` share: its parts, and a host's nft and systemd.

PYTEST_DONT_REWRITE: test modules import this one before pytest knows that it is a plugin.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import host_roles

PATHS = ("FOLDER", "RULES", "PENDING", "LISTED", "UNIT_FILE", "ENABLED", "DROP_IN_FILE")


def part(name: str) -> ModuleType:
    """A part of what the role's module does on a host."""
    return host_roles.part(f"firewall_setup.{name}")


nft, places, programs, rules = part("nft"), part("places"), part("programs"), part("rules")


def params(**given: Any) -> dict[str, Any]:
    wanted = {"members": [["192.0.2.1"], ["192.0.2.7"]], "sources": [], "ports": ["12345"]}
    return {**wanted, "confirm_timeout": 30, **given}


class Host:
    """A host's nft and systemd: a table is the text that was loaded, the guard is fired by hand."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded = ""
        self.guard = ""
        self.calls: list[tuple[str, ...]] = []
        self.refuse_rules = False
        for name in PATHS:
            path = getattr(places, name)
            monkeypatch.setattr(places, name, str(root / path.lstrip("/")))
        for user in (rules, nft, part("guard")):
            monkeypatch.setattr(user, "run", self.run)
        monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/sbin/nft")
        isdir = os.path.isdir
        monkeypatch.setattr(
            os.path, "isdir", lambda path: path == "/run/systemd/system" or isdir(path)
        )

    def run(self, *arguments: str, check: bool = True) -> Any:
        self.calls.append(arguments)
        code, out, error = 0, "", ""
        match arguments:
            case ("/usr/sbin/nft", "-j", "list", "table", *_):
                out = json.dumps({"nftables": [{"set": {"handle": len(self.calls)}}, self.loaded]})
                if not self.loaded:
                    code, error = 1, "Error: No such file or directory"
            case ("/usr/sbin/nft", "--check", *_) if self.refuse_rules:
                raise programs.FirewallError("syntax error")
            case ("/usr/sbin/nft", "--file", path):
                assert self.guard, "rules were loaded without a guard"
                self.loaded = Path(path).read_text()
            case ("/usr/sbin/nft", "delete", *_):
                self.loaded = ""
            case ("systemctl", "enable", *_):
                Path(places.ENABLED).parent.mkdir(parents=True, exist_ok=True)
                if not Path(places.ENABLED).is_symlink():
                    Path(places.ENABLED).symlink_to(places.UNIT_FILE)
            case ("systemctl", "disable", *_):
                Path(places.ENABLED).unlink()
            case ("systemctl", "reload-or-restart", places.UNIT):
                self.loaded = Path(places.RULES).read_text()
            case ("systemctl", "stop", unit) if unit.endswith(".timer"):
                self.guard = ""
            case ("systemd-run", *_, command):
                self.guard = command
        return SimpleNamespace(returncode=code, stdout=out, stderr=error)

    def fire(self) -> None:
        """What the guard does, of which /bin/sh is left out."""
        confirmed = Path(places.RULES)
        self.loaded = confirmed.read_text() if confirmed.exists() else ""
        Path(places.PENDING).unlink()
        self.guard = ""

    def set_up(self, **given: Any) -> None:
        assert rules.Firewall(params(**given)).apply(dry=False)["changed"]
        rules.Firewall(params(**given)).confirm()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)
