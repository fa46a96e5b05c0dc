"""The inventory for a host that watches a job, as Ansible writes and reads it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.jobs import PLAIN, train
from tests.support.lab import run, write_local_inventory

BIN = Path(sys.executable).parent
PLAY: Any = {
    "hosts": "worker",
    "gather_facts": False,
    "tasks": [
        {
            "ansible.builtin.import_role": {
                "name": "tensorflow_ansible.cluster.train_job",
                "tasks_from": "controller.yml",
                "rolespec_validate": False,
            }
        },
        {
            "ansible.builtin.copy": {
                "src": "{{ __train_job_controller_files.inventory }}",
                "dest": "{{ keep }}",
            },
            "delegate_to": "localhost",
            "run_once": True,
        },
    ],
}


def encrypted(text: str, password: Path) -> str:
    """Return a text as Ansible Vault encrypts it."""
    words = (str(BIN / "ansible-vault"), "encrypt_string", "--vault-password-file", str(password))
    done = run(*words, text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_values_are_resolved_and_then_stay_as_they_are(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("swordfish")
    inventory = tmp_path / "inventory"
    (inventory / "group_vars/all").mkdir(parents=True)
    (inventory / "hosts.ini").write_text(
        "[worker]\nw0 ansible_host=10.0.0.1\nw1 ansible_host=10.0.0.2\n"
    )
    vault = encrypted("from {{ the }} vault", password).replace("\n", "\n  ")
    (inventory / "group_vars/all/job.yml").write_text(
        "rate: 0.5\n"
        "train_job_args: [--rate, '{{ rate * 2 }}', 1.10, --name, '{{ inventory_hostname }}']\n"
        "train_job_environment:\n"
        "  LITERAL: !unsafe 'a {{ b }} {% c %}'\n"
        f"  SECRET: {vault}\n"
        "train_job_python: '{{ train_job_root }}/own/bin/python'\n"
        "ansible_ssh_common_args: -J jump\n"
        "ansible_become_password: swordfish\n"
        "unrelated: '{{ missing }}'\n"
    )
    playbook, kept = tmp_path / "play.yml", tmp_path / "kept.yml"
    playbook.write_text(yaml.safe_dump([PLAY]))
    given = {
        "keep": str(kept),
        "train_job_controller": "w1",
        "train_job_id": "night",
        "train_job_script": str(PLAIN),
        "train_job_groups": {"worker": ["w0", "w1"]},
        "train_job_notify_command": "{{ 'echo ' ~ '{{ raw }}' }}",
    }
    words = ("-i", str(inventory), "-e", json.dumps(given), "--vault-password-file", str(password))
    done = run(str(BIN / "ansible-playbook"), str(playbook), *words, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert "vault" not in done.stdout.replace("vault-password", "")

    text = kept.read_text()
    for left_out in ("swordfish", "jump", "unrelated", "rate:", "train_job_id", str(PLAIN)):
        assert left_out not in text
    # As the host reads it: nothing is a template.
    for host in ("w0", "w1"):
        show = (
            "{{ {'a': train_job_args, 'e': train_job_environment, 'n': train_job_notify_command, "
        )
        show += "'p': train_job_python} | to_json }}"
        options = ("-i", str(kept), "-c", "local", "-m", "ansible.builtin.debug", "-a")
        done = run(str(BIN / "ansible"), host, *options, f"msg={show}", "-o")
        assert done.returncode == 0, done.stdout + done.stderr
        shown = json.loads(done.stdout.partition("=> ")[2])["msg"]
        values = json.loads(shown) if isinstance(shown, str) else shown
        assert values == {
            "a": ["--rate", "1.0", "1.10", "--name", host],
            "e": {"LITERAL": "a {{ b }} {% c %}", "SECRET": "from {{ the }} vault"},
            "n": "echo {{ raw }}",
            "p": "~/train/own/bin/python",
        }
    done = run(str(BIN / "ansible-inventory"), "-i", str(kept), "--list")
    hosts = json.loads(done.stdout)["_meta"]["hostvars"]
    assert hosts["w1"]["ansible_connection"] == "local"
    assert hosts["w0"].get("ansible_connection") is None


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("worker0", "worker0: this host is the machine on which you are working.*--detach"),
        ("worker7", "--on worker7: .* choose one of worker0, worker1"),
    ],
)
def test_unsuitable_hosts_are_rejected_before_anything_changes(
    tmp_path: Path, on: str, message: str
) -> None:
    inventory = write_local_inventory(tmp_path / "inventory", {"worker": 2})
    runs = tmp_path / "runs"
    given = json.dumps({"train_job_runs_dir": str(runs), "train_job_root": str(tmp_path / "root")})
    words = ("-i", str(inventory), "-e", given, "--script", str(PLAIN), "--on", on)
    done = train("run", *words)
    assert done.returncode == 2, done.stderr
    assert re.search(message, done.stderr), done.stderr
    assert not list(runs.glob("*"))
    assert not (tmp_path / "root").exists()
