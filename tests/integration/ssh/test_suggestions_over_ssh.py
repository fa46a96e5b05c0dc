"""Suggested commands for hosts: with another port, with a key, and behind a jump host."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import pasted, run
from tests.support.testbed import Rank, Testbed, running_testbed
from train.gang import login_failures, suggestions
from train.host.suggested import HOST, SUGGESTIONS, suggest

pytestmark = pytest.mark.docker

#: Programs that the hosts lack, or that would change them.
STUBS = ("findmnt", "ip", "iperf3", "nvidia-smi", "ping", "ps", "uptime")
VALUES = {"index": "0", "watts": "250", "size": "1472", "address": "127.0.0.1"}
HOSTS = [pytest.param("plain", marks=pytest.mark.soak), "behind"]
ON_HOSTS = [name for name, suggestion in SUGGESTIONS.items() if suggestion.program == HOST]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with running_testbed(2, tmp_path_factory.mktemp("bed")) as found:
        for host in found.hosts:
            stub = '#!/bin/sh\nprintf "<%s>" "$(basename "$0")" "$@"\n'
            for name in STUBS:
                path = f"/usr/local/bin/{name}"
                found.exec(host, "tee", path, user="root", stdin=stub)
                found.exec(host, "chmod", "755", path, user="root")
        yield found


@pytest.fixture(scope="module")
def inventory(bed: Testbed) -> Path:
    """Write an inventory of a host and of another one behind it."""
    path = bed.directory / "my key"
    shutil.copy(bed.directory / "id_ed25519", path)
    shutil.copy(bed.directory / "id_ed25519.pub", f"{path}.pub")
    key, named = shlex.quote(str(path)), {"ansible_ssh_private_key_file": str(path)}
    options = shlex.join(bed.ssh_options)
    jump = f"ssh {options} -i {key} -W %h:%p train@{bed.hosts[0].address}"
    behind = {"ansible_ssh_common_args": f"{options} -o {shlex.quote(f'ProxyCommand={jump}')}"}
    members = [
        Rank("plain", bed.hosts[0], {"ansible_ssh_common_args": options, **named}),
        Rank("behind", bed.hosts[1], {**behind, **named, "ansible_port": 2222}),
    ]
    bed.exec(bed.hosts[1], "sh", user="root", stdin="""
        printf 'Port 22\\nPort 2222\\n' >> /etc/ssh/sshd_config.d/testbed.conf; kill -HUP 1
    """)  # fmt: skip
    known = bed.directory / "known_hosts"
    with known.open("a") as stream:
        for line in known.read_text().splitlines():
            name, _, key_words = line.partition(" ")
            stream.write(f"[{name}]:2222 {key_words}\n")
    return bed.write_inventory({"worker": members})


@pytest.fixture(scope="module")
def findings(inventory: Path) -> list[dict[str, Any]]:
    """Return the doctor's findings about hosts that lack nearly everything."""
    variables = {"train_job_root": "/root/no access", "train_job_runs_dir": f"{inventory}-runs"}
    words = ["doctor", "-i", str(inventory), "-e", json.dumps(variables), "--only", "hosts"]
    done = run(sys.executable, "-m", "train", *words, "--json")
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


@pytest.mark.parametrize("host", HOSTS)
def test_what_the_doctor_suggests_runs(host: str, findings: list[dict[str, Any]]) -> None:
    remedies = {one["what"]: one["remedy"] for one in findings if one["where"] == host}
    shown = pasted(remedies["not-writable"])
    assert "ls: cannot access '/root/no access': Permission denied" in shown.stderr
    assert "<findmnt><-T></root/no access>" in shown.stdout
    listed = pasted(f"{remedies['no-environment']} --list-hosts")
    assert listed.returncode == 0, listed.stderr
    assert re.search(rf"^ +{host}$", listed.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def reach(inventory: Path) -> dict[str, dict[str, Any]]:
    """Return the connection variables of the hosts."""
    program = str(Path(sys.executable).with_name("ansible-inventory"))
    listed = json.loads(run(program, "-i", str(inventory), "--list").stdout)
    found: dict[str, dict[str, Any]] = listed["_meta"]["hostvars"]
    return found


@pytest.mark.parametrize("host", HOSTS)
def test_commands_for_a_host_run_there(
    host: str, bed: Testbed, reach: dict[str, dict[str, Any]]
) -> None:
    sleeper = bed.exec(bed.hosts[host == "behind"], "sh", "-c", "sleep 600 >&- 2>&- & echo $!")
    values = {**VALUES, "folder": "/tmp/it's; exit 3", "pids": sleeper.stdout.strip()}
    printed = {}
    for name in ON_HOSTS:
        fields = {k: v for k, v in values.items() if f"{{{k}}}" in SUGGESTIONS[name].usage}
        line = suggestions.filled(suggest(name, on=host, **fields), reach)
        done = pasted(line)
        printed[name] = done.stdout.strip()
        if name == "disk-use":
            assert "df: '/tmp/it'\\''s; exit 3': No such file or directory" in done.stderr
            continue
        assert done.returncode == 0, f"{line}: {done.stderr}"
        if name not in ("kill", "folder-rights"):
            words = shlex.split(SUGGESTIONS[name].usage.partition(" |")[0].format(**fields))
            assert printed[name] == "".join(f"<{word}>" for word in words if word != "sudo")
    assert printed["folder-rights"] == "<findmnt><-T></tmp/it's; exit 3>"


@pytest.mark.parametrize("host", HOSTS)
def test_the_logins_of_remedies_work(
    host: str, bed: Testbed, reach: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / ".ssh").mkdir()  # for temporary files of ssh-copy-id
    remedies = " ".join(
        login_failures.failure(kind, reach[host]).remedy for kind in login_failures.KINDS
    )
    by_root = re.findall(r"`((?:chage|usermod) [^`]+)`", remedies)
    assert len(by_root) == 2
    for line in by_root:
        bed.exec(bed.hosts[host == "behind"], "sh", "-c", line, user="root")
    lines = sorted(set(re.findall(r"`(ssh(?:-copy-id)? [^`]+)`", remedies)))
    assert len(lines) == 4, lines  # ssh-copy-id, and ssh alone, with -v and with a command
    for line in lines:
        if line.startswith("ssh-copy-id "):
            line = line.replace("ssh-copy-id ", f"HOME={tmp_path} ssh-copy-id -n ", 1)
        elif "echo works" not in line:
            line += " echo works"
        done = pasted(line)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert "works" in done.stdout or "ssh-copy-id" in line
