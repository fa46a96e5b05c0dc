"""Tokens, passwords, sessions and names of hosts."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from train.cli.dashboard import access
from train.cli.dashboard.access import Access
from train.gang.errors import UserError

PASSWORD = "a long password"


def test_a_token_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    token = access.read_token(tmp_path / "runs")
    path = tmp_path / "runs" / access.FOLDER / access.TOKEN_FILE
    assert len(token) == 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert access.read_token(tmp_path / "runs") == token
    path.chmod(0o640)
    with pytest.raises(UserError, match=r"must be readable by you only .* remove it"):
        access.read_token(tmp_path / "runs")


def test_a_token_is_not_read_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / access.FOLDER
    folder.mkdir()
    (tmp_path / "elsewhere").write_text("t" * 43)
    (folder / access.TOKEN_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        access.read_token(tmp_path)


def test_a_session_ends_with_time_another_token_and_another_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = Access("t" * 43)
    cookie = rules.new_session()
    assert rules.is_session(cookie)
    assert Access("t" * 43).is_session(cookie), "the dashboard was started again"
    assert not Access("u" * 43).is_session(cookie)
    assert not Access("t" * 43, PASSWORD).is_session(cookie)
    began, signature = cookie.split(".")
    later = f"{int(began) + 1}.{signature}"
    for forged in ("", ".", began, later, f"{cookie}0", f"-1.{signature}", "²." + signature):
        assert not rules.is_session(forged), forged
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + access.SESSION_S + 1)
    assert not rules.is_session(cookie)


def test_a_form_belongs_to_one_session() -> None:
    rules = Access("t" * 43)
    assert rules.is_form_key("1.a", rules.form_key("1.a"))
    assert not rules.is_form_key("2.a", rules.form_key("1.a"))
    assert not rules.is_form_key("1.a", "")


def test_either_the_token_or_the_password_opens_a_session() -> None:
    by_token, by_password = Access("t" * 43), Access("t" * 43, PASSWORD)
    assert by_token.is_token("t" * 43)
    assert not by_token.is_token("t" * 42)
    assert not by_token.is_password("")
    assert not by_password.is_token("t" * 43)
    assert by_password.is_password(PASSWORD)
    assert not by_password.is_password("é" * 20)


@pytest.mark.parametrize(
    ("header", "here", "bound"),
    [
        ("127.0.0.1:8787", True, True),
        ("localhost", True, True),
        ("LOCALHOST:1", True, True),
        ("[::1]:8787", True, True),
        ("192.0.2.7:8787", False, True),
        (f"{socket.gethostname()}:1", False, True),
        ("evil.example", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("localhost@evil.example", False, False),
        ("", False, False),
        ("a b", False, False),
    ],
)
def test_only_own_names_are_hosts(header: str, here: bool, bound: bool) -> None:
    assert Access("t").is_host(header) == here
    assert Access("t", PASSWORD, "0.0.0.0").is_host(header) == bound


def test_the_password_is_from_a_private_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    path.chmod(0o600)
    assert access.read_password(str(path), {}) == PASSWORD
    assert access.read_password("", {access.PASSWORD_VARIABLE: PASSWORD}) == PASSWORD
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        access.read_password(str(path), {})
    with pytest.raises(UserError, match="12 characters or more"):
        access.read_password("", {access.PASSWORD_VARIABLE: "short"})
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(UserError, match="--password-file"):
        access.read_password("", {})
