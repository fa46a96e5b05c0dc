"""The role ``nvidia_driver``: facts of a host, the choice of packages, and errors."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from ansible.errors import AnsibleError
from ansible.module_utils.testing import patch_module_args
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.tensorflow_ansible.cluster.plugins.modules import nvidia_driver_info

from tests.support.lab import REPOSITORY

ROLE = REPOSITORY / "roles/nvidia_driver"
KERNEL = "6.1.0-50-amd64"
#: Kepler's K80, Maxwell's M10, Turing's T4, Pascal's P100, Hopper's H100, Blackwell's B200.
K80, M10, T4, P100, H100, B200 = "102d", "13bd", "1eb8", "15f8", "2330", "2901"


@pytest.fixture(scope="module", autouse=True)
def compiled_once() -> Iterator[None]:
    """Compile each template once: Ansible compiles it for each value that needs it."""
    code: dict[Any, Any] = {}
    compiling: Any = jinja2.Environment.compile

    def cached(self: Any, source: Any, *more: Any, **options: Any) -> Any:
        if not isinstance(source, str):
            return compiling(self, source, *more, **options)
        key = (type(self), str(source), more, *options.items())
        if key not in code:
            code[key] = compiling(self, source, *more, **options)
        return code[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", cached)
        yield


class Machine:
    """A fake host: its root folder, its PCI listing, its programs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
        self.capsys = capsys
        self.root, self.pci, self.bin = folder / "root", folder / "pci", folder / "bin"
        monkeypatch.setattr(nvidia_driver_info, "ROOT", str(self.root))
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")

    def write(self, path: str, text: str = "", folder: Path | None = None) -> Path:
        target = (folder or self.root) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def device(
        self, address: str, vendor: str = "10de", kind: str = "03", device: str = H100, **links: str
    ) -> None:
        for name, number in (("vendor", vendor), ("class", f"{kind}0200"), ("device", device)):
            self.write(f"{address}/{name}", f"0x{number}\n", self.pci)
        for name, target in links.items():
            (self.pci / address / name).symlink_to(f"/sys/bus/pci/drivers/{target}")

    def program(self, name: str, script: str) -> None:
        self.write(name, f"#!/bin/sh\n{script}\n", self.bin).chmod(0o755)

    def on_disk(self, version: str) -> None:
        """Install the driver's module under Debian's name nvidia-current, the only one found."""
        self.program("modinfo", f'case "$*" in *nvidia-current) echo {version};; *) exit 1;; esac')

    def smi(self, text: str, status: int = 0) -> None:
        self.write("query", text, self.bin)
        topology = "printf '\\t\\033[4mGPU0\\tCPU Affinity\\033[0m\\nGPU0\\t X \\t0-7\\n'"
        script = f'case "$1" in topo) {topology};; *) cat {self.bin}/query;; esac; exit {status}'
        self.program("nvidia-smi", script)

    def info(self) -> Any:
        with patch_module_args({"pci_root": str(self.pci)}), pytest.raises(SystemExit):
            nvidia_driver_info.main()
        return json.loads(self.capsys.readouterr().out)


class Decision:
    """The role's variables and assertions, evaluated for a host's facts and package lists."""

    def __init__(self, facts: Any, host: Any, offered: dict[str, str], **inputs: Any):
        policy = [f"{name}:\n  Installed: (none)\n  Candidate: {offered[name]}" for name in offered]
        self.variables = {
            **{**self.file("defaults/main.yml"), **self.file("vars/main.yml"), **inputs},
            **{"nvidia_driver_facts": facts, "ansible_facts": host, "ansible_check_mode": False},
            "__nvidia_driver_lists": {"stdout": "\n".join([*policy, *offered])},
            "__nvidia_driver_names": {"stdout": "\n".join(offered)},
        }

    @staticmethod
    @functools.cache
    def file(name: str) -> Any:
        return DataLoader().load_from_file(str(ROLE / name), trusted_as_template=True)

    @functools.cached_property
    def templar(self) -> Templar:
        """One for all values: each new one would compile all templates again."""
        return Templar(loader=DataLoader(), variables=self.variables)

    def value(self, name: str) -> Any:
        return self.templar.template(trust_as_template("{{ " + f"__nvidia_driver_{name}" + " }}"))

    def follow(self, task: dict[str, Any]) -> None:
        """Evaluate a task's assertions; other tasks have no effect here."""
        if "ansible.builtin.include_vars" in task:
            name = self.templar.template(task["ansible.builtin.include_vars"]["file"])
            self.variables.update(self.file(f"vars/{name}"))
            self.templar.available_variables = self.variables
        elif self.holds(task.get("when", [])):
            for inner in task.get("block", []):
                self.follow(inner)
            check = task.get("ansible.builtin.assert")
            if check and not self.holds(check["that"]):
                raise AnsibleError(self.templar.template(check["fail_msg"]))

    def holds(self, conditions: Any) -> bool:
        listed = conditions if isinstance(conditions, list) else [conditions]
        return all(self.templar.evaluate_conditional(each) for each in listed)


ADDRESS, SMI = "0000:3b:00.0", "00000000:3B:00.0, 0, GPU-1, NVIDIA H100, {}, {}, {}, Enabled\n"
PROC = "proc/driver/nvidia/version"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Machine:
    """Return a machine with one GPU, and a driver that is installed but not loaded."""
    made = Machine(tmp_path, monkeypatch, capsys)
    made.device(ADDRESS)
    made.on_disk("535.261.03")
    made.smi("NVIDIA-SMI has failed", status=9)
    return made


@pytest.fixture
def good(machine: Machine) -> Machine:
    machine.write(PROC, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Thu\nGCC:\n")
    machine.smi(SMI.format(81559, "9.0", "Disabled"))
    return machine


def conclude(machine: Machine, **inputs: Any) -> Decision:
    host = {"kernel": KERNEL, "distribution": "Debian", "os_family": "Debian"}
    return Decision(machine.info(), {**host, "distribution_release": "trixie"}, {}, **inputs)


def states(made: Decision) -> list[str]:
    names = ("ready", "installed", "broken", "needs_reboot", "needs_key")
    return [name for name in names if made.value(name)]


def test_gpus_are_nvidias_display_controllers(machine: Machine) -> None:
    machine.device("0000:86:00.0", device=T4, driver="nouveau")
    machine.device("0000:3b:00.1", kind="04")  # its audio device
    machine.device("0000:00:02.0", vendor="8086")
    machine.device("0000:3b:00.4", physfn="a")
    machine.device("0000:af:00.0", driver="vfio-pci")
    (machine.pci / "0000:ff:00.0").mkdir()
    assert machine.info()["gpus"] == [
        {"pci": ADDRESS, "device_id": H100, "kernel_driver": None},
        {"pci": "0000:86:00.0", "device_id": T4, "kernel_driver": "nouveau"},
    ]
    machine.pci = machine.pci.with_name("nowhere")
    assert machine.info()["gpus"] == []


def test_a_good_driver(good: Machine) -> None:
    good.device("0000:af:00.0")
    result = good.info()
    assert result["driver"] == {"version": "535.261.03", "open": False}
    assert result["gpus"][0] == {
        **{"pci": ADDRESS, "device_id": H100, "kernel_driver": None, "index": 0, "uuid": "GPU-1"},
        **{"name": "NVIDIA H100", "memory_mib": 81559, "compute_capability": "9.0", "mig": False},
    }
    assert result["topology"][1].split() == ["GPU0", "X", "0-7"]
    made = conclude(good)
    assert states(made) == ["ready", "installed"]
    assert made.value("notes") == ["GPUs that the driver does not see: 0000:af:00.0"]
    made = conclude(good, nvidia_driver_minimum="570.26")
    assert states(made) == []
    assert made.value("notes") == ["driver 535.261.03 is loaded, older than 570.26"]


def test_fields_that_a_gpu_does_not_have(good: Machine) -> None:
    good.smi(SMI.format("[N/A]", "12.1", "[N/A]").replace("Enabled", "N/A"))
    good.write(PROC, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release")
    result = good.info()
    assert result["driver"] == {"version": "580.95.05", "open": True}
    assert (result["gpus"][0]["memory_mib"], result["gpus"][0]["mig"]) == (None, None)
    assert result["smi"] == {"installed": True, "error": None, "persistence": None}


def test_a_driver_on_the_disk_is_loaded(machine: Machine) -> None:
    status = machine.write("var/lib/dpkg/status", "Status: install ok installed\n")
    assert states(conclude(machine)) == ["installed"]
    journal = machine.write("var/lib/dpkg/updates/0001")
    assert states(conclude(machine)) == []
    journal.unlink()
    status.write_text("Package: libcuda1\nStatus: install ok unpacked\n")
    assert states(conclude(machine)) == []
    status.unlink()
    (machine.bin / "nvidia-smi").unlink()
    assert states(conclude(machine)) == []


def test_another_driver_in_the_kernel_needs_a_reboot(good: Machine) -> None:
    good.on_disk("550.163.01")
    good.smi("Failed to initialize NVML: Driver/library version mismatch", status=9)
    made = conclude(good)
    assert states(made) == ["installed", "needs_reboot"]
    assert "driver 535.261.03 is loaded, 550.163.01 is installed" in made.value("notes")[0]
    (good.root / PROC).unlink()
    good.write("sys/module/nouveau/initstate")
    made = conclude(good)
    assert states(made) == ["installed", "needs_reboot"]
    assert "needs a reboot, because nouveau is loaded" in made.value("notes")[0]


@pytest.mark.parametrize(("text", "status"), [("Unable to determine", 9), ("shows no GPU", 0)])
def test_a_broken_driver_is_refused(good: Machine, text: str, status: int) -> None:
    good.smi(text if status else "", status)
    made = conclude(good)
    with pytest.raises(AnsibleError, match=f"nvidia-smi fails: .*{text}"):
        made.follow({"block": made.file("tasks/preflight.yml")})


@pytest.mark.parametrize(("value", "known"), [(1, False), (1, True), (0, False)])
def test_secure_boot(machine: Machine, value: int, known: bool) -> None:
    machine.write(SECURE_BOOT).write_bytes(bytes([6, 0, 0, 0, value]))
    machine.write("var/lib/dkms/mok.pub")
    machine.program("mokutil", f'echo "$2 is {"already" if known else "not"} enrolled"')
    made = conclude(machine)
    waits = bool(value) and not known
    assert states(made) == (["installed", "needs_key"] if waits else ["installed"])
    assert ("mokutil --import /var/lib/dkms/mok.pub" in "".join(made.value("notes"))) == waits


@pytest.mark.parametrize("mark", ["run/systemd/container", ".dockerenv", "proc/1/environ"])
def test_a_container_is_recognized(machine: Machine, mark: str) -> None:
    assert conclude(machine).value("notes") == []
    machine.write(mark, "PATH=/bin\0container=lxc\0")
    assert f"no kernel module for {KERNEL}" in conclude(machine).value("notes")[0]


@pytest.mark.parametrize(
    ("lines", "suites", "components"),
    [
        (
            "trixie|main|$(SIGNED_BY)|1 trixie|contrib|$(SIGNED_BY)|1 trixie-updates|main||2",
            ["trixie", "trixie-updates"],
            ["non-free", "non-free-firmware"],
        ),
        (  # the role's own source does not count
            "trixie|main|/k|1 trixie-backports|main|/k|1 trixie|contrib|/k|/x/nvidia-driver-a:1",
            ["trixie"],
            ["contrib", "non-free", "non-free-firmware"],
        ),
    ],
)
def test_debians_archive(machine: Machine, lines: str, suites: Any, components: Any) -> None:
    targets = [f"http://mirror/debian/|{line}" for line in lines.split()]
    targets.append("http://security/|trixie-security|non-free||3")
    made = conclude(machine, __nvidia_driver_targets={"stdout_lines": targets})
    assert made.value("debian")[0][0] == "http://mirror/debian/"
    assert (made.value("suites"), made.value("components")) == (suites, components)


# The choice of packages.

UBUNTU, EL9 = "5.15.0-119-generic", "5.14.0-570.12.1.el9_6.x86_64"
NOBLE = f"Ubuntu 24.04 Debian {UBUNTU}"
LOCKED = "nvidia-driver-pinning-580 nvidia-dkms-580-open libnvidia-compute-580 nvidia-utils-580"
LOCKED += " nvidia-compute-utils-580"
HEADERS = f"linux-headers-{KERNEL} linux-headers-amd64"
REST = "libcuda1 nvidia-smi nvidia-persistenced"
BOOKWORM = dict.fromkeys([*HEADERS.split(), "nvidia-kernel-dkms"], "535.261.03-1")
THERE = {"headers": True}
MARKS = "headers nouveau uninstaller interrupted secure_boot enrolled container"
BARE = {"module_version": None, **dict.fromkeys(MARKS.split(), False)}


def decide(case: dict[str, Any]) -> Decision:
    """Return the decision on a bare Debian 12 with an H100, changed by ``case``."""
    given = {"system": f"Debian 12 Debian {KERNEL}", "machine": "x86_64", "state": {}, **case}
    lists = given.pop("offered", BOOKWORM)
    name, release, family, kernel = given.pop("system").split()
    host = {"distribution": name, "distribution_version": release, "os_family": family}
    host |= {"distribution_major_version": release.split(".")[0], "kernel": kernel}
    host["architecture"] = given.pop("machine")
    facts = {
        "gpus": [{"device_id": device} for device in given.pop("gpus", [H100])],
        **{"driver": None, "smi": {"installed": False, "error": None}},
        "host": {**BARE, **given.pop("state")},
    }
    made = Decision(facts, host, lists, **{f"nvidia_driver_{key}": given[key] for key in given})
    made.follow({"block": made.file("tasks/preflight.yml") + made.file("tasks/choose.yml")})
    return made


def ubuntu(*branches: str, signed: str = "", **given: Any) -> dict[str, Any]:
    """Return a case with some branches in Ubuntu's lists, such as ``570-server-open``."""
    names = f"linux-headers-{UBUNTU}"
    for branch in branches:
        names += f" nvidia-headless-no-dkms-{branch} nvidia-dkms-{branch}"
        names += f" nvidia-utils-{branch.split('-')[0]}-server"
    for branch in signed.split():
        modules = f" linux-modules-nvidia-{branch}-"
        names += f"{modules}{UBUNTU}{modules}generic"
    known = dict.fromkeys(names.split(), "1:570.1-0ubuntu1")
    return {"system": f"Ubuntu 22.04 Debian {UBUNTU}", "offered": known, **given}


def nvidia(system: str = f"Debian 13 Debian {KERNEL}", **given: Any) -> dict[str, Any]:
    newest = "nvidia-kernel-open-dkms nvidia-kernel-dkms nvidia-driver-cuda nvidia-dkms-open"
    newest += " libnvidia-compute nvidia-persistenced"
    known = {**dict.fromkeys(newest.split(), "610.4-1"), **dict.fromkeys(LOCKED.split(), "580.9-1")}
    return {"system": system, "offered": known, "source": "nvidia", "state": THERE, **given}


def el9(device: str, **given: Any) -> dict[str, Any]:
    offered = {f"kernel-devel-{EL9}": "1"}
    return {"system": f"Rocky 9.6 RedHat {EL9}", "offered": offered, "gpus": [device], **given}


def flavour(kernel: str, suffix: str) -> tuple[dict[str, Any], str]:
    """Return a case with another kernel, and the package that is chosen for it."""
    headers = f"linux-headers-{kernel} linux-headers-{suffix}"
    offered = dict.fromkeys([*BOOKWORM, *headers.split()], "535.261.03-1")
    case = {"system": f"Debian 12 Debian {kernel}", "offered": offered}
    return case, f"{headers} nvidia-kernel-dkms {REST}"


BUILT = f"{HEADERS} nvidia-kernel-dkms {REST}"
UBUNTU_570 = "570-server-open"
SIGNED = (
    f"linux-modules-nvidia-{UBUNTU_570}-{UBUNTU} nvidia-headless-no-dkms-{UBUNTU_570}"
    f" nvidia-utils-570-server linux-modules-nvidia-{UBUNTU_570}-generic"
)
UBUNTU_580 = f"linux-headers-{UBUNTU} nvidia-dkms-{{0}} nvidia-headless-no-dkms-{{0}}"
UBUNTU_580 += " nvidia-utils-580-server"
DEVEL, REST_EL9 = f"kernel-devel-{EL9} kernel-devel", "nvidia-driver-cuda nvidia-persistenced"
CASES: list[tuple[dict[str, Any], str]] = [
    ({}, BUILT),
    ({"flavour": "open"}, f"{HEADERS} nvidia-open-kernel-dkms {REST}"),
    (
        {"offered": dict.fromkeys(BOOKWORM, "3:570.86-1"), "state": THERE},  # NVIDIA advises open
        f"linux-headers-amd64 nvidia-open-kernel-dkms {REST}",
    ),
    ({"state": THERE}, f"linux-headers-amd64 nvidia-kernel-dkms {REST}"),
    ({"state": {"container": True}}, f"nvidia-kernel-dkms {REST}"),
    ({"packages": ["nvidia-smi"], "offered": {}}, "nvidia-smi"),
    ({"state": {"secure_boot": True, "enrolled": True}}, BUILT),
    ({"state": {"secure_boot": True}, "secure_boot": "allow"}, BUILT),
    flavour("6.1.0-50-cloud-amd64", "cloud-amd64"),
    flavour("6.12.94+deb13-amd64", "amd64"),
    flavour("6.8.0-1044-azure-fde", "azure-fde"),
    (ubuntu(UBUNTU_570, signed=UBUNTU_570, state={"secure_boot": True}), SIGNED),
    (  # modules that Ubuntu has signed win over a newer branch
        ubuntu("535-server", UBUNTU_570, "580-server-open", signed=f"535-server {UBUNTU_570}"),
        SIGNED,
    ),
    (ubuntu("470-server", "535-server", "580-server-open"), UBUNTU_580.format("580-server-open")),
    (
        ubuntu("580-server", "580-server-open", "590-server", signed="590-server", gpus=[P100]),
        UBUNTU_580.format("580-server"),
    ),
    (nvidia(), "nvidia-kernel-open-dkms nvidia-driver-cuda nvidia-persistenced"),
    (
        nvidia(gpus=[P100]),
        "nvidia-driver-pinning-580 nvidia-kernel-dkms nvidia-driver-cuda nvidia-persistenced",
    ),
    (
        nvidia(gpus=[M10]),
        "nvidia-driver-pinning-580 nvidia-kernel-dkms nvidia-driver-cuda nvidia-persistenced",
    ),
    (  # the K80 has no influence
        nvidia(gpus=[K80, B200], flavour="open"),
        "nvidia-kernel-open-dkms nvidia-driver-cuda nvidia-persistenced",
    ),
    (nvidia(NOBLE), "nvidia-dkms-open libnvidia-compute nvidia-persistenced"),
    (nvidia(NOBLE, branch="580", gpus=[T4]), LOCKED),
    (el9(H100), f"open-dkms {DEVEL} kmod-nvidia-open-dkms {REST_EL9}"),
    (el9(T4, branch="580"), f"580-open {DEVEL} kmod-nvidia-open-dkms {REST_EL9}"),
    (el9(P100), f"580-dkms {DEVEL} kmod-nvidia-latest-dkms {REST_EL9}"),
]


@pytest.mark.parametrize(("case", "expected"), CASES)
def test_packages(case: dict[str, Any], expected: str) -> None:
    made = decide(case)
    stream = [made.value("stream")] if DEVEL in expected else []
    assert stream + made.value("choice") == expected.split()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"minimum": "570.26"}, "driver 535.261.03; TensorFlow needs 570.26"),
        ({"minimum": "new"}, "nvidia_driver_minimum is new"),
        ({"branch": "x"}, "nvidia_driver_branch is x: use a number"),
        ({"gpus": [B200]}, "the GPU 10de:2901 needs 570 or newer.*nvidia_driver_source to nvidia"),
        ({"flavour": "open", "gpus": [P100]}, "older than Turing.*flavour to proprietary"),
        (nvidia(flavour="proprietary", gpus=[B200]), "flavour to open"),
        (nvidia(gpus=[P100, B200]), "No single driver supports all GPUs"),
        ({"branch": "550"}, "leave nvidia_driver_branch empty"),
        (nvidia(branch="590", gpus=[P100]), "branch to 580"),
        (nvidia(offered={}), "NVIDIA repository offers no nvidia-kernel-open-dkms"),
        (el9(H100, source="distribution"), "Rocky does not package an NVIDIA driver"),
        (ubuntu("535-server", branch="550", gpus=[P100]), "nvidia-headless-no-dkms-550-server"),
        ({"state": {"uninstaller": True}}, "nvidia-uninstall --silent"),
        ({"system": f"Debian 11 Debian {KERNEL}"}, "cannot install a driver on Debian 11"),
        ({"system": f"Rocky 10.0 RedHat {EL9}"}, "cannot install a driver on Rocky 10.0"),
        ({"system": f"Fedora 43 RedHat {EL9}"}, "cannot install a driver on Fedora 43"),
        ({"machine": "aarch64"}, r"cannot install a driver on Debian 12 \(aarch64\)"),
        ({"state": {"secure_boot": True}}, "Secure Boot is on.*nvidia_driver_secure_boot to allow"),
    ],
)
def test_what_cannot_work_is_refused(case: dict[str, Any], message: str) -> None:
    with pytest.raises(AnsibleError, match=message):
        decide(case)


@pytest.mark.parametrize("kernel", ["6.1.0-9-amd64", "6.12.94+deb13-cloud-amd64", "6.18.44-custom"])
def test_a_kernel_without_headers_is_refused(kernel: str) -> None:
    expected = rf"no linux-headers-{re.escape(kernel)}, .*linux-image-amd64 linux-headers-amd64"
    with pytest.raises(AnsibleError, match=expected):
        decide({"system": f"Debian 13 Debian {kernel}"})


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([], "no NVIDIA GPU"),
        (["0191", K80, "128b"], "no supported NVIDIA GPU: 10de:0191, 10de:102d, 10de:128b are"),
        (["1340"], None),
        ([K80, T4], None),
    ],
)
def test_a_host_without_a_supported_gpu_is_skipped(
    machine: Machine, devices: list[str], message: str | None
) -> None:
    machine.pci = machine.pci.with_name("others")
    for number, device in enumerate(devices):
        machine.device(f"0000:0{number}:00.0", device=device, driver="nouveau")
    made = conclude(machine)
    tasks = made.file("tasks/main.yml")
    ends = [task.get("ansible.builtin.meta") == "end_role" for task in tasks].index(True)
    assert made.holds(tasks[ends]["when"]) == bool(message)
    # Until then, nothing but the local fact is changed.
    modules = [name for task in tasks[:ends] for name in task if name.startswith("ansible.builtin")]
    assert modules == [f"ansible.builtin.{name}" for name in ("import_tasks", "debug", "file")]
    report = tasks[1]
    assert made.holds(report["when"]) == bool(message)
    if message:
        assert made.templar.template(report["ansible.builtin.debug"]["msg"]).startswith(message)
