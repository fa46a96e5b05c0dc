"""Whose key the role ``nvidia_driver`` takes."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from tests.host_roles import load
from tests.nvidia_role import ROLE, part

keys = load(ROLE / "library/nvidia_key.py")

#: The example of RFC 9580, appendix A.1, and its fingerprint.
KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----
Comment: an example

xjMEU/NfCxYJKwYBBAHaRw8BAQdAPwmJlL3ZFu1AUxl5NOSofIBzOhKA1i+AEJku
Q+47JAY=
-----END PGP PUBLIC KEY BLOCK-----
"""
FINGERPRINT = "C959BDBAFA32A2F89A153B678CFDE12197965A9A"


def test_fingerprint() -> None:
    assert keys.fingerprints(KEY) == [FINGERPRINT]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>blocked</html>", "0 armored public keys"),
        (KEY + KEY, "2 armored public keys"),
        (KEY.replace("Q+47JAY=\n", ""), "cut off"),
        (KEY.replace("xjME", "xjMF"), "not of version 4"),
        (KEY.replace("JAY=", "JAc="), "it holds the key [0-9A-F]{40}"),
        (KEY.replace("xjME", "x!ME"), "base64"),
    ],
)
def test_another_key_is_refused(text: str, message: str) -> None:
    with pytest.raises(keys.KeyFileError, match=message):
        keys.check(text, FINGERPRINT)


def test_a_second_key_in_the_block_is_refused() -> None:
    data = keys.unarmor(KEY)
    body = base64.b64encode(data + data).decode()
    begin, *_, end = KEY.splitlines()
    with pytest.raises(keys.KeyFileError, match=f"{FINGERPRINT} and {FINGERPRINT}"):
        keys.check(f"{begin}\n\n{body}\n{end}\n", FINGERPRINT)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "good.pub").write_text(KEY)
    (folder / "other.pub").write_text(KEY.replace("JAY=", "JAc="))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    thread.join()


def run_key_module(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        keys.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_key_is_brought_once(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keyrings" / "key.asc"
    wanted = {"url": f"{server}/good.pub", "path": str(path), "fingerprint": FINGERPRINT.lower()}
    checked = run_key_module(capsys, _ansible_check_mode=True, **wanted)
    assert (checked["changed"], path.exists()) == (True, False)
    assert run_key_module(capsys, **wanted)["changed"]
    assert path.read_text() == KEY
    assert path.stat().st_mode & 0o777 == 0o644
    assert not run_key_module(capsys, **wanted)["changed"]
    path.write_text(KEY + KEY)
    assert run_key_module(capsys, **wanted)["changed"]


@pytest.mark.parametrize(
    ("name", "message"), [("other.pub", "is not the key"), ("none.pub", "cannot be fetched")]
)
def test_a_wrong_key_is_never_written(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    path = tmp_path / "key.asc"
    wanted = {"url": f"{server}/{name}", "path": str(path), "fingerprint": FINGERPRINT}
    result = run_key_module(capsys, **wanted)
    assert result["failed"]
    assert message in result["msg"]
    assert not list(tmp_path.glob("key*"))


def test_every_distribution_has_a_repository_with_a_pinned_key() -> None:
    variables = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    repositories = variables["__nvidia_driver_repositories"]
    expected = {"rhel9"}
    for name in ("debian", "ubuntu"):
        expected |= {name + release.replace(".", "") for release in part("about").SUPPORTED[name]}
    assert set(repositories) == expected
    for repository in repositories.values():
        fingerprint = repository["fingerprint"]
        assert len(bytes.fromhex(fingerprint)) == 20
        assert fingerprint.endswith(repository["key"].removesuffix(".pub").upper())
