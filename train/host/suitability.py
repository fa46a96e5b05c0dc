"""Collects facts that decide whether TensorFlow can be installed and used on a host.

train/gang/suitability_rules.py judges them. ``setup.yml`` sends this file alone to hosts that may
have an old Python, so it needs only the standard library of Python 3.6 and imports nothing from
this package. It changes nothing on the host: the file that it maps has no name.
"""

import errno
import glob
import json
import mmap
import os
import re
import subprocess
from typing import Any, Dict, List, Mapping, Set, Tuple

#: Time limit in seconds of an interpreter, and maximum number of others to try.
PYTHON_S, MOST_OTHERS = 20.0, 12
#: A program with which an interpreter prints its properties.
PROBE = """\
import json, platform, sys
try:
    import venv
except ImportError:
    venv = None
print(json.dumps({
    "version": platform.python_version(),
    "implementation": sys.implementation.name,
    "bits": 64 if sys.maxsize > 2**32 else 32,
    "free_threaded": "t" in getattr(sys, "abiflags", ""),
    "has_venv": venv is not None,
    "glibc": " ".join(platform.libc_ver()).strip(),
}))
"""
#: Places of interpreters besides the PATH: of administrators, uv, pyenv and conda.
PLACES = (
    "/usr/local/bin",
    "/opt/*/bin",
    "~/.local/bin",
    "~/.local/share/uv/python/*/bin",
    "~/.pyenv/versions/*/bin",
    "~/mini*3/bin",
)
#: The message about a folder that is mounted with noexec, with its remedy.
NOEXEC = "%s is mounted with noexec, so libraries under %s cannot be loaded"
NOEXEC_REMEDY = (
    "set tensorflow_root, train_job_root and train_job_python to a folder on another "
    "filesystem; or, to allow execution there, run on the host: `sudo mount -o remount,exec "
    "%s`, and remove noexec from /etc/fstab"
)
#: NVIDIA's GPUs on the PCI bus: the vendor, and the beginning of the class.
NVIDIA, DISPLAY = "0x10de", "0x03"


def examine(request: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the facts of this host, see host_facts.Suitability.

    Args:
        request: ``python``, the interpreter for environments, a name or a path;
            ``supported``, the oldest and newest suitable version; ``root``, the folder of the
            environments; ``environment``, the name of the link to the environment in use.
    """
    import platform  # slow to import

    facts: Dict[str, Any] = {
        "machine": platform.machine(),
        "has_avx": has_avx(_read("/proc/cpuinfo")),
        "nvidia": nvidia(),
        "host_python": platform.python_version(),
    }
    facts.update(system(_read("/etc/os-release") or _read("/usr/lib/os-release")))
    facts.update(interpreter(str(request["python"]), list(request["supported"])))
    facts.update(folder(_absolute(str(request["root"])), str(request["environment"])))
    return facts


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(os.path.expandvars(path)))


def has_avx(cpus: str) -> bool:
    """Return whether ``cpus``, the text of ``/proc/cpuinfo``, lists AVX; True unless on x86."""
    flags = [line.split(":", 1)[1] for line in cpus.splitlines() if line.startswith("flags")]
    return not flags or "avx" in flags[0].split()


def nvidia() -> str:
    """Return ``driver`` if an NVIDIA driver is loaded, or ``device`` for a GPU without a driver.

    Without a GPU, return an empty string.
    """
    if os.path.exists("/dev/nvidia0") or os.path.exists("/proc/driver/nvidia/version"):
        return "driver"
    for path in glob.glob("/sys/bus/pci/devices/*"):
        vendor, kind = _read(path + "/vendor").strip(), _read(path + "/class")
        if vendor == NVIDIA and kind.startswith(DISPLAY):
            return "device"
    return ""


def system(release: str) -> Dict[str, Any]:
    """Return names and version of the distribution in ``release``, the text of os-release(5)."""
    fields = {}
    for line in release.splitlines():
        name, _, value = line.partition("=")
        fields[name] = value.strip().strip("\"'")
    return {
        "os_id": fields.get("ID", ""),
        "os_like": fields.get("ID_LIKE", ""),
        "os_version": fields.get("VERSION_ID", ""),
        "os_name": " ".join([fields.get("NAME", ""), fields.get("VERSION_ID", "")]).strip(),
    }


def interpreter(command: str, supported: List[str]) -> Dict[str, Any]:
    """Return the properties of an interpreter; if it is unsuitable, also suitable ``others``."""
    import shutil  # slow to import

    path = shutil.which(os.path.expanduser(command)) or ""
    found = _probe(path) if path else {"error": "no such program: %s" % command}
    facts: Dict[str, Any] = {
        "interpreter": path,
        "python_version": found.get("version", ""),
        "implementation": found.get("implementation", ""),
        "bits": found.get("bits", 0),
        "free_threaded": found.get("free_threaded", False),
        "has_venv": found.get("has_venv", False),
        "glibc": found.get("glibc", ""),
        "python_error": found.get("error", ""),
        "others": [],
    }
    if not _fits(found, supported):
        facts["others"] = _others(supported)
    return facts


def _probe(path: str) -> Dict[str, Any]:
    try:
        done = subprocess.run(
            [path, "-I", "-c", PROBE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=PYTHON_S,
            check=False,
        )
        found: Any = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
        if isinstance(found, dict):
            return found
    except subprocess.TimeoutExpired:
        return {"error": "%s did not answer within %g s" % (path, PYTHON_S)}
    except (OSError, IndexError, ValueError):
        pass
    return {"error": "%s is not a working Python 3" % path}


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _fits(found: Mapping[str, Any], supported: List[str]) -> bool:
    """Return whether TensorFlow has wheels for an interpreter."""
    oldest, newest = (_numbers(version) for version in supported)
    return bool(
        oldest <= _numbers(found.get("version", "")) <= newest
        and found.get("implementation") == "cpython"
        and found.get("bits") == 64
        and found.get("has_venv")
        and not found.get("free_threaded")
    )


def _others(supported: List[str]) -> List[Dict[str, str]]:
    """Return suitable interpreters of this host, newest first: ``path`` and ``version``."""
    import shutil  # slow to import

    oldest, newest = (_numbers(version) for version in supported)
    names = ["python3.%d" % minor for minor in range(newest[1], oldest[1] - 1, -1)]
    found: List[Dict[str, str]] = []
    seen: Set[str] = set()
    for name in names:
        paths = [shutil.which(name) or ""]
        for place in PLACES:
            paths += sorted(glob.glob(os.path.join(os.path.expanduser(place), name)))
        for path in paths:
            real = os.path.realpath(path)
            if not path or real in seen or len(seen) >= MOST_OTHERS:
                continue
            seen.add(real)
            facts = _probe(path)
            if _fits(facts, supported):
                found.append({"path": path, "version": facts["version"]})
    return found


def folder(root: str, environment: str) -> Dict[str, Any]:
    """Return facts that decide whether environments can be installed under ``root``.

    If it does not exist yet, the nearest folder above it is checked.
    """
    target = os.path.join(root, "venvs")
    parent, obstacle = nearest(target)
    disk = os.statvfs(parent)
    point, options = mount_of(parent)
    marker = os.path.join(root, environment, "tensorflow-venv.json")
    is_mapped, write_error = try_file(parent)
    return {
        "root": root,
        "parent": parent,
        "obstacle": obstacle,
        "write_error": write_error,
        "is_noexec": not is_mapped or bool(disk.f_flag & os.ST_NOEXEC),
        "mount_point": point,
        "mount_options": options,
        "free_mb": disk.f_bavail * disk.f_frsize // 10**6,
        "is_installed": os.path.isfile(marker),
    }


def nearest(path: str) -> Tuple[str, str]:
    """Return the nearest folder at or above a path, and an obstacle below it.

    The obstacle is a file or a dangling link, or empty if there is none.
    """
    obstacle = ""
    while not os.path.isdir(path):
        if os.path.lexists(path):
            obstacle = path
        path = os.path.dirname(path)
    return path, obstacle


def try_file(parent: str) -> Tuple[bool, str]:
    """Return whether programs in a folder can be mapped, and the error if it is not writable.

    The test file has no name and takes no space. If it cannot be created, mapping is assumed to
    work.
    """
    import tempfile  # slow to import

    is_mapped = True
    try:
        with tempfile.TemporaryFile(dir=parent) as stream:
            stream.truncate(mmap.PAGESIZE)
            is_mapped = can_map(stream.fileno())
    except OSError as error:
        return is_mapped, error.strerror or str(error)
    return is_mapped, ""


def is_noexec(folder: str, name: str) -> bool:
    """Return whether libraries below a folder cannot be loaded.

    ``name`` is a file in the folder to try, if it exists.
    """
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return True
    try:
        with open(os.path.join(folder, name), "rb") as stream:
            return os.fstat(stream.fileno()).st_size > 0 and not can_map(stream.fileno(), 1)
    except OSError:
        return False


def can_map(descriptor: int, length: int = mmap.PAGESIZE) -> bool:
    """Return whether an open file may be mapped as a program, which noexec mounts forbid."""
    try:
        mapped = mmap.mmap(
            descriptor,
            length,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_EXEC,
        )
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.EACCES)
    mapped.close()
    return True


def mount_of(path: str) -> Tuple[str, str]:
    """Return the mount point of a path, and its options."""
    path, point, options = os.path.realpath(path), "/", ""
    for line in _read("/proc/self/mountinfo").splitlines():
        fields = line.split()
        mounted = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[4])
        inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(point):  # the later of two mounts is visible
            point, options = mounted, fields[5]
    return point, options
