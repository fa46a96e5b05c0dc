"""What playbooks report to people."""

from __future__ import annotations

from train.cli import playbooks


def test_failed_transfers_are_one_sentence_for_all_hosts() -> None:
    hosts = ("192.0.2.11", "192.0.2.12")
    raw = [
        f"{method} transfer mechanism failed on [{host}]. Use ANSIBLE_DEBUG=1 to see detailed "
        "information"
        for host in hosts
        for method in ("sftp", "scp")
    ]
    (sentence,) = {playbooks.for_people(line) for line in raw}
    assert "a login prints text" in sentence
    assert "ANSIBLE_DEBUG" not in sentence
    assert playbooks.for_people("the disk is nearly full") == "the disk is nearly full"
