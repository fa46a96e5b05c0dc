#!/usr/bin/python
"""Ansible module: chooses the packages of the NVIDIA driver that a host can install.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nvidia_packages
short_description: Choose the packages of the NVIDIA driver that a host can install
description:
  - Asks the package manager's lists, which must be fresh, and changes nothing.
  - Takes the packages for computing and leaves those for a display out.
  - Refuses a driver that is too old for TensorFlow or for a GPU, a kernel whose headers the archive
    has no longer, and what the distribution does not have, each with its remedy.
options:
  host:
    description: C(host) of M(nvidia_look).
    type: dict
    required: true
  gpus:
    description: C(gpus) of M(nvidia_look).
    type: list
    elements: dict
    required: true
  minimum:
    description: The oldest driver that will do.
    type: str
    required: true
  source:
    description: Whose packages to take.
    type: str
    choices: [distribution, nvidia]
    required: true
  flavour:
    description:
      - Which kernel module. V(auto) takes the open one where every GPU and the driver can do it.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  branch:
    description: Driver branch, such as V(580). Empty for the newest that the GPUs can use.
    type: str
    default: ""
  packages:
    description: Packages to take in place of the module's choice.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Reports a change where something is to be installed, also without fresh lists.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Choose the driver's packages
  nvidia_packages:
    host: "{{ nvidia_driver_facts.host }}"
    gpus: "{{ nvidia_driver_facts.gpus }}"
    minimum: 525.60.13
    source: distribution
  register: choice
"""

RETURN = r"""
packages:
  description: What to install.
  type: list
  elements: str
  returned: success
missing:
  description: Those of them that are not installed.
  type: list
  elements: str
  returned: success
stream:
  description: The stream of the dnf module nvidia-driver to enable; empty for none.
  type: str
  returned: success
version:
  description: The driver's version as far as the lists tell it.
  type: str
  returned: success
signed:
  description: Whether the distribution has signed the kernel module, so that Secure Boot loads it.
  type: bool
  returned: success
"""

import re
import subprocess
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule

#: The first PCI device numbers of two generations. NVIDIA's open kernel module drives Turing and
#: newer ones, and Blackwell and newer ones are driven by no other.
TURING, BLACKWELL = 0x1E00, 0x2900
#: The last branch for what came before Turing, the first for Blackwell, and the first in which the
#: open kernel module is the one that NVIDIA recommends.
LAST_BEFORE_TURING, FIRST_FOR_BLACKWELL, FIRST_OPEN = 580, 570, 560
#: The first branch of NVIDIA's own packages for Ubuntu without the branch in their names.
FIRST_UNNUMBERED = 590

#: What stands before the flavour in a kernel's name: 6.1.0-50-amd64, 6.12.94+deb13-cloud-amd64,
#: 6.8.0-1044-azure.
KERNEL_VERSION = r"^\d[\d.]*(\+deb\d+)?(-\d+)?-"

#: Returns, for names of packages, the candidate versions of those that can be installed.
Candidates = Callable[[List[str]], Dict[str, str]]


class PackageError(Exception):
    """Nothing fits this host; the message says why and what to do."""


class Wanted(NamedTuple):
    """What the user and TensorFlow want."""

    minimum: str
    source: str
    flavour: str
    branch: str


class Choice(NamedTuple):
    """What to install."""

    packages: List[str]
    version: str
    #: built on the host by DKMS; else it comes compiled
    built: bool
    stream: str = ""


def key(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def upstream(version: str) -> str:
    """Return the driver's version of a package's, ``535.1`` of ``3:535.1-1~deb12u1``."""
    found = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", version)
    return found.group(1) if found else ""


def device_ids(gpus: List[Dict[str, Any]]) -> List[int]:
    return [int(gpu["device_id"], 16) for gpu in gpus]


def is_open(wanted: Wanted, devices: List[int], major: int) -> bool:
    """Whether to take the open kernel module.

    Raises:
        PackageError: the one that was asked for does not drive these GPUs.
    """
    old = ["%04x" % device for device in devices if device < TURING]
    new = ["%04x" % device for device in devices if device >= BLACKWELL]
    if old and new:
        raise PackageError(
            "No one driver drives all GPUs: 10de:%s need the proprietary kernel module, 10de:%s the"
            " open one." % (", 10de:".join(old), ", 10de:".join(new))
        )
    if wanted.flavour == "open" and old:
        raise PackageError(
            "The open kernel module does not drive the GPUs 10de:%s, which are older than Turing."
            " Set nvidia_driver_flavour to proprietary." % ", 10de:".join(old)
        )
    if wanted.flavour == "proprietary" and new:
        raise PackageError(
            "The proprietary kernel module does not drive the GPUs 10de:%s, which are Blackwell or"
            " newer. Set nvidia_driver_flavour to open." % ", 10de:".join(new)
        )
    if wanted.flavour != "auto":
        return wanted.flavour == "open"
    return bool(new) or (not old and major >= FIRST_OPEN)


def check_version(wanted: Wanted, devices: List[int], version: str) -> None:
    """Refuse a driver that is too old for TensorFlow or a GPU, or too new for a GPU.

    Raises:
        PackageError: it is.
    """
    remedy = " Set nvidia_driver_source to nvidia, or choose another nvidia_driver_branch."
    if key(version) < key(wanted.minimum):
        raise PackageError(
            "The %s offers driver %s; TensorFlow needs %s or newer.%s"
            % (archive(wanted), version, wanted.minimum, remedy)
        )
    major = key(version)[0]
    for device in devices:
        if device >= BLACKWELL and major < FIRST_FOR_BLACKWELL:
            raise PackageError(
                "The %s offers driver %s; the GPU 10de:%04x needs %d or newer.%s"
                % (archive(wanted), version, device, FIRST_FOR_BLACKWELL, remedy)
            )
        if device < TURING and major > LAST_BEFORE_TURING:
            raise PackageError(
                "Driver %s no longer drives the GPU 10de:%04x; the last branch that does is %d."
                " Set nvidia_driver_branch to %d."
                % (version, device, LAST_BEFORE_TURING, LAST_BEFORE_TURING)
            )


def archive(wanted: Wanted) -> str:
    return "distribution" if wanted.source == "distribution" else "NVIDIA repository"


def none_offered(wanted: Wanted, what: str) -> PackageError:
    return PackageError(
        "The %s offers no %s. Look whether its package lists could be fetched, or choose another"
        " nvidia_driver_source or nvidia_driver_branch." % (archive(wanted), what)
    )


def choose_debian(wanted: Wanted, devices: List[int], ask: Candidates) -> Choice:
    """Choose among Debian's own packages."""
    if wanted.branch:
        raise PackageError(
            "Debian has one driver branch: leave nvidia_driver_branch empty, or set"
            " nvidia_driver_source to nvidia."
        )
    found = ask(["nvidia-kernel-dkms", "nvidia-open-kernel-dkms"])
    if "nvidia-kernel-dkms" not in found:
        raise none_offered(wanted, "nvidia-kernel-dkms")
    version = upstream(found["nvidia-kernel-dkms"])
    check_version(wanted, devices, version)
    kernel = "nvidia-kernel-dkms"
    if is_open(wanted, devices, key(version)[0]):
        kernel = "nvidia-open-kernel-dkms"
    return Choice([kernel, "libcuda1", "nvidia-smi", "nvidia-persistenced"], version, True)


def choose_ubuntu(
    wanted: Wanted,
    devices: List[int],
    ask: Candidates,
    names: Callable[[str], List[str]],
    kernel: str,
) -> Choice:
    """Choose among Ubuntu's server branches.

    Modules that Ubuntu has compiled and signed for the running kernel win over ones that the host
    would build itself; then the newest branch wins.
    """
    prefix = "nvidia-headless-no-dkms-"
    branches = sorted(
        {
            int(found.group(1))
            for name in names(prefix)
            for found in [re.fullmatch(prefix + r"(\d+)-server(-open)?", name)]
            if found
        },
        reverse=True,
    )
    if wanted.branch:
        branches = [branch for branch in branches if str(branch) == wanted.branch]
    fitting: List[Tuple[bool, int, Choice]] = []
    refusal: Optional[PackageError] = None
    for branch in branches:
        try:
            opened = is_open(wanted, devices, branch)
            suffix = "%d-server%s" % (branch, "-open" if opened else "")
            modules = "linux-modules-nvidia-%s-%s" % (suffix, kernel)
            dkms = "nvidia-dkms-%s" % suffix
            rest = [prefix + suffix, "nvidia-utils-%d-server" % branch]
            found = ask([modules, dkms, *rest])
            if not all(name in found for name in rest):
                continue
            version = upstream(found[rest[0]])
            check_version(wanted, devices, version)
        except PackageError as error:
            refusal = refusal or error
            continue
        if modules in found:
            flavour = re.sub(KERNEL_VERSION, "", kernel)
            metas = ["linux-modules-nvidia-%s-%s" % (suffix, flavour)]
            following = [name for name in metas if name in ask(metas)]
            fitting.append((True, branch, Choice([modules, *following, *rest], version, False)))
        elif dkms in found:
            fitting.append((False, branch, Choice([dkms, *rest], version, True)))
    if fitting:
        return max(fitting, key=lambda entry: entry[:2])[2]
    raise refusal or none_offered(wanted, prefix + (wanted.branch or "NNN") + "-server")


def nvidia_branch(wanted: Wanted, devices: List[int]) -> str:
    """Return the branch to lock; empty for the newest.

    Raises:
        PackageError: the one that was asked for does not drive these GPUs.
    """
    branch = wanted.branch
    if not branch and any(device < TURING for device in devices):
        branch = str(LAST_BEFORE_TURING)
    if branch:
        # the newest release of the branch
        check_version(wanted, devices, "%s.999" % branch)
    return branch


def choose_nvidia_apt(
    wanted: Wanted, devices: List[int], ask: Candidates, distribution: str
) -> Choice:
    """Choose among the packages of NVIDIA's repository for Debian and Ubuntu."""
    branch = nvidia_branch(wanted, devices)
    opened = is_open(wanted, devices, int(branch) if branch else FIRST_UNNUMBERED)
    numbered = distribution == "ubuntu" and branch and int(branch) < FIRST_UNNUMBERED
    if numbered:
        packages = [
            "nvidia-dkms-%s%s" % (branch, "-open" if opened else ""),
            "libnvidia-compute-%s" % branch,
            "nvidia-utils-%s" % branch,
            "nvidia-compute-utils-%s" % branch,
        ]
    elif distribution == "ubuntu":
        packages = ["nvidia-dkms-open" if opened else "nvidia-dkms", "libnvidia-compute"]
    else:
        packages = ["nvidia-kernel-open-dkms" if opened else "nvidia-kernel-dkms"]
        packages += ["nvidia-driver-cuda"]
    # Where the daemon and nvidia-smi are packages of their own differs from branch to branch.
    extra = [] if numbered else ["nvidia-persistenced", "nvidia-smi"]
    pin = ["nvidia-driver-pinning-%s" % branch] if branch else []
    found = ask([*packages, *extra, *pin])
    lacking = [name for name in [*packages, *pin] if name not in found]
    if lacking:
        raise none_offered(wanted, ", ".join(lacking))
    # Before the pin is installed, the lists name the newest branch's version.
    version = branch or upstream(found[packages[0]])
    if not branch:
        check_version(wanted, devices, version)
    return Choice(pin + packages + [name for name in extra if name in found], version, True)


def choose_nvidia_dnf(wanted: Wanted, devices: List[int]) -> Choice:
    """Choose stream and packages of NVIDIA's repository for Red Hat's family."""
    branch = nvidia_branch(wanted, devices)
    opened = is_open(wanted, devices, int(branch) if branch else FIRST_UNNUMBERED)
    stream = "open-dkms" if opened else "latest-dkms"
    if branch:
        stream = branch + ("-open" if opened else "-dkms")
    kernel = "kmod-nvidia-open-dkms" if opened else "kmod-nvidia-latest-dkms"
    packages = [kernel, "nvidia-driver-cuda", "nvidia-persistenced"]
    return Choice(packages, branch, True, stream)


def headers(host: Dict[str, Any], ask: Candidates) -> List[str]:
    """Return the packages with the headers of the running kernel, and of the kernels to come.

    Raises:
        PackageError: the archive has none for the running one.
    """
    if host["family"] == "redhat":
        wanted = "kernel-devel-%s" % host["kernel"]
        following = "kernel-devel"
    else:
        wanted = "linux-headers-%s" % host["kernel"]
        following = "linux-headers-%s" % re.sub(KERNEL_VERSION, "", host["kernel"])
    found = ask([wanted, following])
    if host["headers"]:
        return [following] if following in found else []
    if wanted not in found:
        usual = "linux-headers-%s" % ("generic" if host["distribution"] == "ubuntu" else "amd64")
        newest = following if following in found else usual
        remedy = "apt-get install %s %s" % (newest.replace("headers", "image"), newest)
        if host["family"] == "redhat":
            remedy = "dnf install kernel kernel-devel"
        raise PackageError(
            "The archive has no %s, which the driver needs to build its module for the running"
            " kernel: it is older than the archive's, or not the distribution's. Bring the newest"
            " kernel (`%s`), reboot, and run again." % (wanted, remedy)
        )
    return [name for name in (wanted, following) if name in found]


def choose(
    host: Dict[str, Any],
    gpus: List[Dict[str, Any]],
    wanted: Wanted,
    ask: Candidates,
    names: Callable[[str], List[str]],
) -> Choice:
    """Return what to install.

    Raises:
        PackageError: nothing fits.
    """
    devices = device_ids(gpus)
    if host["family"] == "redhat":
        if wanted.source == "distribution":
            raise PackageError(
                "%s has no NVIDIA driver of its own. Set nvidia_driver_source to nvidia."
                % host["distribution"]
            )
        choice = choose_nvidia_dnf(wanted, devices)
    elif wanted.source == "nvidia":
        choice = choose_nvidia_apt(wanted, devices, ask, host["distribution"])
    elif host["distribution"] == "ubuntu":
        choice = choose_ubuntu(wanted, devices, ask, names, host["kernel"])
    else:
        choice = choose_debian(wanted, devices, ask)
    # A container has the machine's kernel, whose headers are the machine's affair.
    if not choice.built or host["container"]:
        return choice
    # First the headers: DKMS builds at once for a kernel whose headers are there.
    return choice._replace(packages=headers(host, ask) + choice.packages)


def run(*command: str) -> str:
    """Return a program's standard output.

    Raises:
        PackageError: it fails.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise PackageError("`%s` failed: %s" % (" ".join(command), said))
    return done.stdout.decode(errors="replace")


def parse_policy(output: str) -> Dict[str, Tuple[str, str]]:
    """Return, from ``apt-cache policy``, each package's installed and candidate version."""
    versions: Dict[str, Tuple[str, str]] = {}
    name = installed = ""
    for line in output.splitlines():
        if line and not line.startswith(" ") and line.endswith(":"):
            name = line[:-1]
        elif line.startswith("  Installed: "):
            installed = line[13:].strip()
        elif line.startswith("  Candidate: "):
            versions[name] = (installed, line[13:].strip())
    return versions


def apt_candidates(names: List[str]) -> Dict[str, str]:
    policy = parse_policy(run("apt-cache", "policy", *names))
    return {name: version for name, (_, version) in policy.items() if version != "(none)"}


def apt_names(prefix: str) -> List[str]:
    return run("apt-cache", "pkgnames", prefix).split()


def dnf_candidates(names: List[str]) -> Dict[str, str]:
    lines = run("dnf", "-q", "repoquery", "--qf", "%{name}-%{version}-%{release}.%{arch}\n", *names)
    found = {}
    for name in names:
        for line in lines.splitlines():
            # a name alone, or with its version
            if line.startswith(name):
                found[name] = line[len(name) :].lstrip("-")
    return found


def missing(names: List[str], family: str) -> List[str]:
    """Return those of ``names`` that are not installed."""
    if family == "redhat":
        installed = set()
        for name in names:
            if not subprocess.run(["rpm", "-q", "--quiet", name], check=False).returncode:
                installed.add(name)
    else:
        shown = subprocess.run(
            ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n", *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        ).stdout.decode()
        states = [line.split() for line in shown.splitlines()]
        installed = {state[0] for state in states if state[1:] == ["installed"]}
    return [name for name in names if name not in installed]


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "dict", "required": True},
            "gpus": {"type": "list", "elements": "dict", "required": True},
            "minimum": {"type": "str", "required": True},
            "source": {"type": "str", "choices": ["distribution", "nvidia"], "required": True},
            "flavour": {
                "type": "str",
                "choices": ["auto", "open", "proprietary"],
                "default": "auto",
            },
            "branch": {"type": "str", "default": ""},
            "packages": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    host = params["host"]
    wanted = Wanted(params["minimum"], params["source"], params["flavour"], params["branch"])
    ask = dnf_candidates if host["family"] == "redhat" else apt_candidates
    try:
        if params["packages"]:
            choice = Choice(params["packages"], "", True)
        else:
            choice = choose(host, params["gpus"], wanted, ask, apt_names)
    except PackageError as error:
        if not module.check_mode:
            module.fail_json(msg=str(error))
        # The sources that a real run would have brought may be what is missing.
        module.warn("Before its sources are there, no driver can be chosen: %s" % error)
        choice = Choice([], "", True)
    absent = missing(choice.packages, host["family"])
    module.exit_json(
        # Nothing is installed here; in check mode nothing else says what a real run would install.
        changed=module.check_mode and bool(absent),
        diff={"prepared": "".join("+ %s\n" % name for name in absent)},
        packages=choice.packages,
        missing=absent,
        stream=choice.stream,
        version=choice.version,
        signed=not choice.built,
    )


if __name__ == "__main__":
    main()
