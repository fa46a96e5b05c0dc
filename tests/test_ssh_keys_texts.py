"""The role ``ssh_keys`` on the control node: the texts that every host gets."""

from __future__ import annotations

import subprocess
from pathlib import Path

from roles.ssh_keys.control import texts
from tests.ssh_keys_role import NAME, a_key, an_answer, settle, three


def test_each_key_is_taken_from_its_own_machine_only() -> None:
    hosts = three()
    hosts["b"].update(train_job_address="2001:db8::2", ssh_keys_from=["10.9.0.0/16"])
    lines = texts.render_authorized_keys(settle(hosts).records, NAME).splitlines()
    assert lines[0] == f'from="10.0.0.1",restrict,pty {a_key("a")} train-cluster:a'
    assert lines[1].startswith('from="10.0.0.2,10.9.0.0/16,2001:db8::2",restrict,pty ')
    assert len(lines) == 3


def test_hosts_are_known_under_all_their_names_with_their_port() -> None:
    hosts = three()
    hosts["b"].update(train_job_address="b.lab", ansible_port="2222")
    records = settle(hosts).records
    known = texts.render_known_hosts(records).splitlines()
    assert known[0] == f"a,10.0.0.1 {a_key('host of a')}"
    assert known[1].split(" ")[0] == "[b]:2222,[b.lab]:2222,[10.0.0.2]:2222"
    config = texts.render_config(records, NAME)
    assert "Host b\n    HostName b.lab\nHost b b.lab 10.0.0.2\n    Port 2222\n" in config


def test_ssh_reads_the_configuration_as_it_is_meant(tmp_path: Path) -> None:
    hosts = three()
    hosts["b"].update(train_job_address="b.lab", ansible_port=2222)
    path = tmp_path / "config"
    path.write_text(texts.render_config(settle(hosts).records, NAME) + "Host *\n  User other\n")

    def ask(*words: str) -> dict[str, str]:
        command = ["ssh", "-F", str(path), "-G", *words]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return dict(line.partition(" ")[::2] for line in shown.splitlines())

    for name in ("b", "b.lab"):
        told = ask(name)
        assert (told["hostname"], told["port"], told["user"]) == ("b.lab", "2222", "train")
        assert told["stricthostkeychecking"] == "true"
        assert told["userknownhostsfile"].endswith(".ssh/train-cluster/known_hosts")
        assert told["identityfile"].endswith(".ssh/train-cluster/id_ed25519")
        assert told["identitiesonly"] == "yes"
    assert ask("10.0.0.2")["hostname"] == "10.0.0.2", "an address that is asked for is taken"
    assert ask("admin@b")["identitiesonly"] == "no", "another user logs in with keys of their own"
    assert ask("elsewhere")["user"] == "other"


def test_both_keys_are_taken_while_keys_change() -> None:
    hosts = three()
    hosts["b"]["answer"]["next"] = a_key("b next")
    settled = settle(hosts)
    assert settled.pending == ["b"]
    authorized = texts.render_authorized_keys(settled.records, NAME)
    assert a_key("b") in authorized
    assert a_key("b next") in authorized
    assert texts.render_config(settled.records, NAME).count("id_ed25519.next") == 3
    assert "id_ed25519.next" not in texts.render_config(settle(three()).records, NAME)


def test_hosts_behind_one_gateway_do_not_share_its_address() -> None:
    hosts = {
        name: {
            "ansible_host": "gateway",
            "ansible_port": port,
            "ssh_keys_address": f"10.0.0.{number}",
            "ssh_keys_port": 22,
            "answer": an_answer(name),
        }
        for number, (name, port) in enumerate([("a", 2201), ("b", 2201)], 1)
    }
    assert "gateway" not in texts.render_known_hosts(settle(hosts).records)
    hosts["b"]["ansible_port"] = 2202
    known = texts.render_known_hosts(settle(hosts).records).splitlines()
    assert known[1].startswith("b,10.0.0.2,[gateway]:2202 ")
