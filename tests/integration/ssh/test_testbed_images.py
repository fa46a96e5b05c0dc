"""The base images of the test bed's hosts: found, pulled, or made with debootstrap."""

from __future__ import annotations

import os
import platform
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.support.testbed import TRIXIE, TestbedError, ensure_image, images
from tests.support.testbed.__main__ import main


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> Path:
    """Put shell scripts before the PATH; return the file in which their calls are noted."""
    folder.mkdir()
    for name, script in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f'#!/bin/sh\necho "$(basename "$0") $*" >> {folder}/calls\n{script}\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(images, "_path", lambda: os.environ["PATH"])
    return folder / "calls"


def fake_docker(folder: Path, pull: str) -> str:
    """Return a script that has an image once it was pulled or imported."""
    return f"""\
case "$1 $2" in
    "image inspect") test -e {folder}/image && echo sha256:1 ;;
    "pull --quiet") {pull} ;;
    "import --change") cp "$4" {folder}/image ;;
    *) exit 9 ;;
esac"""


def test_a_base_image_is_pulled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_docker(tmp_path, f"touch {tmp_path}/image")
    calls = commands(tmp_path / "bin", monkeypatch, docker=script)
    assert ensure_image(TRIXIE) == "sha256:1"
    assert ensure_image(TRIXIE) == "sha256:1"
    assert [line.split()[1] for line in calls.read_text().splitlines()] == [
        *("image", "pull", "image"),
        "image",
    ]


@pytest.mark.parametrize(
    ("name", "user", "keyring", "reason"),
    [
        ("fedora:41", 0, True, "its name is not debian:RELEASE or debian:RELEASE-slim"),
        (TRIXIE, 1000, True, "that needs root"),
        (TRIXIE, 0, False, "there is no .*/keyring; install the package debian-archive-keyring"),
    ],
)
def test_an_image_that_cannot_be_had(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    user: int,
    keyring: bool,
    reason: str,
) -> None:
    script = fake_docker(tmp_path, "echo no such host >&2; exit 1")
    calls = commands(tmp_path / "bin", monkeypatch, docker=script, debootstrap="")
    monkeypatch.setattr(images, "_KEYRING", tmp_path / "keyring")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if keyring:
        (tmp_path / "keyring").touch()
    with pytest.raises(TestbedError, match=rf"(?s)no image {name} .*no such host\n.*: {reason}"):
        ensure_image(name)
    assert main(["images", name]) == 1
    assert f"Remedies: a registry that Docker reaches and `docker pull {name}`" in (
        capsys.readouterr().err
    )
    assert "debootstrap" not in calls.read_text()


def test_a_base_image_is_made_from_the_mirror_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_root = "mkdir -p $6/etc/apt/apt.conf.d $6/usr/local/share/ca-certificates $6/var/cache/apt"
    calls = commands(
        tmp_path / "bin",
        monkeypatch,
        docker=fake_docker(tmp_path, "exit 1"),
        debootstrap=f"{make_root}; touch $6/var/cache/apt/big.deb",
        apt_get="""cat <<'END'
http://a.example/tools/ bookworm stable
http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm-updates main
http://mirror.example/security/ bookworm-security main
END""",
        apt_config="""cat <<'END'
APT::Architecture "amd64";
Acquire::Check-Valid-Until "false";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::Languages:: "none";
END""",
        chroot="",
    )
    (tmp_path / "keyring").touch()
    (tmp_path / "certificates").mkdir()
    (tmp_path / "certificates" / "lab.crt").write_text("a certificate")
    certificates = Path("/usr/local/share/ca-certificates")
    monkeypatch.setattr(images, "_KEYRING", tmp_path / "keyring")
    monkeypatch.setattr(images, "_CERTIFICATES", tmp_path / "certificates")
    monkeypatch.setattr(images, "_CERTIFICATES_THERE", certificates.relative_to("/"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        platform,
        "freedesktop_os_release",
        lambda: {"ID": "debian", "VERSION_CODENAME": "bookworm"},
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert ensure_image(TRIXIE) == "sha256:1"

    done = [line.split() for line in calls.read_text().splitlines()]
    made = next(words for words in done if words[0] == "debootstrap")
    assert made[-3] == "trixie"
    assert made[-1] == "http://mirror.example/debian"
    assert f"--keyring={tmp_path}/keyring" in made
    assert ["chroot", made[-2], "update-ca-certificates"] in done
    with tarfile.open(tmp_path / "image") as archive:
        files = {
            name: stream.read().decode()
            for name in archive.getnames()
            if (stream := archive.extractfile(name))
        }
    assert files == {
        "./etc/apt/sources.list": (
            "deb http://mirror.example/debian trixie main\n"
            "deb http://mirror.example/debian trixie-updates main\n"
            "deb http://mirror.example/security trixie-security main\n"
        ),
        "./etc/apt/apt.conf.d/90mirror": (
            'Acquire::Check-Valid-Until "false";\n'
            'Acquire::http::Proxy "http://proxy.example:3128";\n'
        ),
        "./usr/local/share/ca-certificates/lab.crt": "a certificate",
    }
    assert not Path(made[-2]).exists()
