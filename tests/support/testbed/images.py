"""Base images of Debian releases, and the hosts' images that are made of them.

A base image that Docker does not have is pulled. Where no registry answers, one of a Debian
release is made with debootstrap from the mirror that this machine's apt uses, as far as debootstrap
and root are there; it takes over the machine's own certificate authorities and apt's settings for
the way to the mirror, so that apt works in its containers.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.testbed.engine import TestbedError, docker

BOOKWORM = "debian:bookworm-slim"
TRIXIE = "debian:trixie-slim"

_DOCKERFILE = Path(__file__).with_name("Dockerfile")
_IMAGE = "train-testbed"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_CERTIFICATES_THERE = _CERTIFICATES.relative_to("/")
_MIRROR = "http://deb.debian.org/debian"
#: Settings of apt that say how the mirror is reached and believed.
_APT_SETTINGS = re.compile(
    r"Acquire::(Check-Valid-Until|Check-Date|ForceIPv[46]|Retries|https?(::.*)?) .+;"
)


@contextmanager
def one_build() -> Iterator[None]:
    """Wait until no other process of this machine builds an image, and keep others waiting."""
    with Path(tempfile.gettempdir(), "testbed-images.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_image(base: str = BOOKWORM, systemd: bool = False) -> str:
    """Build the hosts' image, unless there is one of the same inputs, and return its tag.

    Args:
        base: the image of a Debian release from which it is made; got if Docker does not have it.
        systemd: whether systemd is the hosts' first process, instead of sshd alone.

    Raises:
        TestbedError: the base image could not be had, or Docker failed.
    """
    recipe = _DOCKERFILE.read_text(encoding="utf-8")
    target = "systemd" if systemd else "plain"
    uid = f"TRAIN_UID={os.getuid() or 1000}"
    with one_build():
        inputs = "\n".join([ensure_image(base), target, uid, recipe])
        tag = f"{_IMAGE}:{hashlib.sha256(inputs.encode()).hexdigest()[:12]}"
        if docker("image", "inspect", tag, check=False).returncode:
            docker(
                *("build", "--build-arg", f"BASE={base}", "--build-arg", uid, "--target", target),
                *("--tag", tag, "-"),
                stdin=recipe,
                timeout=900,
            )
    return tag


def ensure_image(name: str) -> str:
    """Get a base image unless Docker has it, and return its id.

    Raises:
        TestbedError: it can be neither pulled nor made; the message says why and what helps.
    """
    identify = ("image", "inspect", "--format", "{{.Id}}", name)
    found = docker(*identify, check=False)
    if found.returncode == 0:
        return found.stdout.strip()
    pulled = docker("pull", "--quiet", name, check=False, timeout=900)
    if pulled.returncode:
        obstacle = _obstacle(name)
        if obstacle:
            raise TestbedError(
                f"Docker has no image {name} and cannot pull it:\n{pulled.stderr.strip()}\n"
                f"It was not made with debootstrap either: {obstacle}.\n"
                f"Remedies: a registry that Docker reaches and `docker pull {name}`; "
                f"`docker load` of a saved image of that name; or, as root on Debian with "
                f"debootstrap, `python -m tests.support.testbed images {name}`"
            )
        _debootstrap(name, _release(name))
    return docker(*identify).stdout.strip()


def _release(name: str) -> str:
    """Return the code name of the Debian release in an image's name, or an empty string."""
    match = re.fullmatch(r"debian:([a-z]+)(-slim)?", name)
    return match.group(1) if match else ""


def _obstacle(name: str) -> str:
    """Say what keeps debootstrap from making an image; an empty string if nothing does."""
    if not _release(name):
        return "its name is not debian:RELEASE or debian:RELEASE-slim"
    if not shutil.which("debootstrap", path=_path()):
        return "there is no `debootstrap`; install the package"
    if not _KEYRING.is_file():
        return f"there is no {_KEYRING}; install the package debian-archive-keyring"
    if os.geteuid() != 0:
        return "that needs root"
    return ""


def _debootstrap(name: str, release: str) -> None:
    """Make the image of a Debian release."""
    mirror, security = _mirrors()
    with _temporary_folder() as folder:
        root = folder / "root"
        _run(
            *("debootstrap", "--variant=minbase", "--include=ca-certificates"),
            *(f"--keyring={_KEYRING}", "--force-check-gpg", release, str(root), mirror),
        )
        sources = [f"deb {mirror} {release} main", f"deb {mirror} {release}-updates main"]
        if security:
            sources.append(f"deb {security} {release}-security main")
        (root / "etc/apt/sources.list").write_text("\n".join(sources) + "\n", encoding="utf-8")
        settings = [
            line
            for line in _run("apt-config", "dump").splitlines()
            if _APT_SETTINGS.fullmatch(line)
        ]
        if settings:
            path = root / "etc/apt/apt.conf.d/90mirror"
            path.write_text("\n".join(settings) + "\n", encoding="utf-8")
        certificates = sorted(_CERTIFICATES.glob("*.crt"))
        for certificate in certificates:
            shutil.copy(certificate, root / _CERTIFICATES_THERE)
        if certificates:
            _run("chroot", str(root), "update-ca-certificates")
        archive = folder / "root.tar"
        _run(
            *("tar", "--create", "--one-file-system", "--file", str(archive)),
            *("--exclude", "./var/cache/apt/*", "--exclude", "./var/lib/apt/lists/*"),
            *("--directory", str(root), "."),
        )
        docker("import", "--change", 'CMD ["bash"]', str(archive), name, timeout=600)


def _mirrors() -> tuple[str, str]:
    """Return the addresses of this machine's Debian archive and of its security archive, or ""."""
    system = platform.freedesktop_os_release()
    release = system.get("VERSION_CODENAME", "")
    if system.get("ID") != "debian" or not release:
        return _MIRROR, ""
    layout = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    targets = _run("apt-get", "indextargets", "--format", layout, "Created-By: Packages")
    found: dict[str, str] = {}
    for line in targets.splitlines():
        address, suite, component = line.split(" ")
        if component == "main":
            found.setdefault(suite, address.rstrip("/"))
    return found.get(release, _MIRROR), found.get(f"{release}-security", "")


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Give a folder and remove it, without following what a broken debootstrap left mounted."""
    folder = Path(tempfile.mkdtemp(prefix="testbed-image-"))
    try:
        yield folder
    finally:
        _run("rm", "--recursive", "--force", "--one-file-system", str(folder))


def _path() -> str:
    """Return a PATH on which the programs of root are, too."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _run(*command: str) -> str:
    """Run a command and return its output; raise TestbedError with the last of it if it fails."""
    done = subprocess.run(
        command,
        env={**os.environ, "LC_ALL": "C", "PATH": _path()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise TestbedError(f"`{' '.join(command)}` failed (exit code {done.returncode}):\n{last}")
    return done.stdout
