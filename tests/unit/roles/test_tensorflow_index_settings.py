"""The package index of uv on a host, from the user's settings for uv and for pip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.tensorflow_ansible.cluster.plugins.module_utils.tensorflow_setup import (
    index_settings,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory without settings, and remove settings elsewhere."""
    monkeypatch.setattr(index_settings, "SYSTEM_FILES", ())
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_", "SSL_", "XDG_", "ALL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write_pip_conf(home: Path, text: str) -> None:
    path = home / ".config/pip/pip.conf"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_pips_settings_hold_for_uv(home: Path) -> None:
    write_pip_conf(
        home,
        f"""
[global]
index-url = https://reader:s3cret@pypi.example.org/simple
extra-index-url = https://a.example.org/simple
cert = {home}/ca.pem
[install]
trusted-host =
    pypi.example.org
    files.example.org
[list]
format = columns
""",
    )
    found = index_settings.of_host("")
    assert found["UV_DEFAULT_INDEX"] == "https://reader:s3cret@pypi.example.org/simple"
    assert found["SSL_CERT_FILE"] == f"{home}/ca.pem"
    assert found["UV_INSECURE_HOST"] == "pypi.example.org files.example.org"
    assert "a.example.org" not in str(found)


@pytest.mark.parametrize(
    ("variables", "index_url", "index"),
    [
        ({}, "", "https://file.example.org/simple"),
        ({"PIP_INDEX_URL": "https://pip.example.org/simple"}, "", "https://pip.example.org/simple"),
        ({"UV_DEFAULT_INDEX": "https://uv.example.org"}, "", "https://uv.example.org"),
        ({"UV_DEFAULT_INDEX": "https://uv.example.org"}, "https://own.org", "https://own.org"),
        ({"PIP_CONFIG_FILE": "/dev/null"}, "", None),
    ],
)
def test_the_nearest_setting_holds(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    index_url: str,
    index: str | None,
) -> None:
    write_pip_conf(home, "[global]\nindex-url = https://file.example.org/simple\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert index_settings.of_host(index_url).get("UV_DEFAULT_INDEX") == index


def test_a_broken_file_is_no_setting(home: Path) -> None:
    write_pip_conf(home, "index-url = x\n[global\n")
    assert "UV_DEFAULT_INDEX" not in index_settings.of_host("")


def test_where_packages_go_is_not_for_the_users_settings(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_SYSTEM_PYTHON", "1")
    monkeypatch.setenv("UV_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("UV_INDEX_TEAM_PASSWORD", "s3cret")
    assert [name for name in index_settings.of_host("") if name.startswith("UV_")] in (
        ["UV_INDEX_TEAM_PASSWORD", "UV_SYSTEM_CERTS"],
        ["UV_INDEX_TEAM_PASSWORD"],
    )
    assert not [name for name in index_settings.without_uv() if name.startswith("UV_")]
