"""The role ``ssh_keys`` on two hosts, which are home directories on this machine.

molecule/default tests that each host accepts each key, test_setup.py that it does so only from the
key's own address.
"""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import run
from tests.support.set_up_role import Play, Tasks, assert_refused, role_task, run_plays


class Cluster:
    """A user's own playbook, its inventory, and the home directories."""

    names = ("a", "b")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "keys").mkdir()
        key = str(folder / "keys/ssh_host_ed25519_key")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        for name in self.names:
            (folder / name).mkdir()
        hosts = {
            name: {"ssh_keys_address": f"10.0.0.{number}", "ansible_host": f"10.0.0.{number}"}
            for number, name in enumerate(self.names, 1)
        }
        given = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ssh_keys_host_keys": f"{folder}/keys/ssh_host_*_key.pub",
            "ssh_keys_members": [{"name": name} for name in self.names],
        }
        (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": given}}))

    def run(self, *options: str, entry: str = "main", **variables: Any) -> Play:
        return self.run_tasks([role_task("ssh_keys", entry)], *options, **variables).checked()

    def run_tasks(self, tasks: Tasks, *options: str, **variables: Any) -> Play:
        play = {
            "hosts": "all",
            "gather_facts": False,
            "environment": {"HOME": f"{self.folder}/{{{{ inventory_hostname }}}}"},
            "vars": variables,
            "tasks": tasks,
        }
        return run_plays(self.folder, self.folder / "hosts.json", [play], *options)

    def ssh(self, name: str) -> Path:
        return self.folder / name / ".ssh"

    def public_key(self, name: str, file: str = "id_ed25519") -> str:
        path = self.ssh(name) / "train-cluster" / file
        return " ".join(run("ssh-keygen", "-y", "-f", str(path)).stdout.split()[:2])

    def admitted(self, name: str, cluster: str = "train-cluster") -> list[str]:
        """Return the keys that a host accepts."""
        lines = (self.ssh(name) / "authorized_keys").read_text(errors="replace").splitlines()
        return [" ".join(line.split(" ")[1:3]) for line in lines if f" {cluster}:" in line]

    def tree(self) -> dict[str, tuple[int, bytes]]:
        """Return mode and content of the files in each ``.ssh``, except backups."""
        return {
            str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
            for name in self.names
            for path in sorted(self.ssh(name).rglob("*"))
            if not path.name.endswith("~")
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Return two hosts that are set up; each test except the last one leaves them unchanged."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    own = made.ssh("a")
    own.mkdir()
    (own / "authorized_keys").write_bytes(b"# mine \xff\nssh-rsa AAAA me")
    (made.folder / "a/dotfiles").write_bytes(b"# mine \xff\nHost *\n  User x\n")
    (own / "config").symlink_to("../dotfiles")

    assert made.run("--check").changes == [5, 5]
    assert not made.ssh("b").exists(), "check mode writes nothing"
    made.run()
    return made


def test_the_key_is_private_and_the_users_own_lines_and_links_stay(cluster: Cluster) -> None:
    own = cluster.ssh("a")
    assert stat.S_IMODE((own / "train-cluster/id_ed25519").stat().st_mode) == 0o600
    assert (own / "authorized_keys").read_bytes().startswith(b"# mine \xff\nssh-rsa AAAA me\n#")
    assert (own / "config").is_symlink()
    lines = (cluster.folder / "a/dotfiles").read_bytes().splitlines()
    assert lines[1] == b"Include train-cluster/config"
    assert lines[3:] == [b"# mine \xff", b"Host *", b"  User x"]


def test_ssh_reads_the_configuration_as_it_is_meant(cluster: Cluster) -> None:
    path = cluster.folder / "config"
    text = (cluster.ssh("a") / "train-cluster/config").read_text()
    path.write_text(text + "Host *\n  User other\n")

    def ask(*words: str) -> dict[str, str]:
        shown = run("ssh", "-F", str(path), "-G", *words).stdout
        return dict(line.partition(" ")[::2] for line in shown.splitlines())

    known = ask("10.0.0.2")
    assert (known["hostname"], known["port"]) == ("10.0.0.2", "22")
    assert (known["stricthostkeychecking"], known["identitiesonly"]) == ("true", "yes")
    assert ask("admin@b")["identitiesonly"] == "no", (
        "logins as another user use that user's own keys"
    )
    assert ask("elsewhere")["user"] == "other"


def test_what_was_damaged_is_fixed_and_the_rest_is_left(cluster: Cluster) -> None:
    ready = cluster.tree()
    (cluster.ssh("a") / "train-cluster/known_hosts").write_text("")
    (cluster.ssh("a") / "train-cluster/config").unlink()
    (cluster.ssh("a") / "train-cluster/id_ed25519").chmod(0o644)
    (cluster.ssh("b") / "authorized_keys").unlink()
    cluster.ssh("b").chmod(0o770)
    assert cluster.run().changes == [3, 2]
    assert cluster.tree() == ready


def test_keys_change_in_two_steps_and_wait_for_who_is_missing(cluster: Cluster) -> None:
    old = [cluster.public_key("a"), cluster.public_key("b")]
    done = cluster.run("--limit", "a", ssh_keys_rekey=True)
    assert (
        "keys of a are not in use yet, and the old keys still are, because b does not" in done.shown
    )
    assert [cluster.public_key("a"), cluster.public_key("b")] == old
    new = cluster.public_key("a", "id_ed25519.next")
    assert cluster.admitted("a") == [old[0], new, old[1]], "b is still known"
    assert cluster.admitted("b") == old
    assert "id_ed25519.next" in (cluster.ssh("a") / "train-cluster/config").read_text()

    (cluster.ssh("b") / "train-cluster/id_ed25519").write_text("broken")
    cluster.run()
    assert cluster.public_key("a") == new
    for name in cluster.names:
        assert cluster.admitted(name) == [new, cluster.public_key("b")] != [new, old[1]]
    assert not list(cluster.folder.glob("*/.ssh/train-cluster/*.next*"))
    assert "id_ed25519.next" not in (cluster.ssh("a") / "train-cluster/config").read_text()


def test_what_cannot_be_done_is_refused(cluster: Cluster) -> None:
    cases = [
        ({"ssh_keys_name": ".."}, "ssh_keys_name is ..: use lower-case letters"),
        ({"ssh_keys_user": "nobody-here"}, "There is no user nobody-here on a: create it first"),
        ({"ssh_keys_host_keys": "/nowhere/*.pub"}, "set up sshd (sudo ssh-keygen -A)"),
    ]
    assert_refused(cluster.run_tasks, "ssh_keys", cases)


def test_removal_from_a_host_without_the_files_changes_nothing(tmp_path: Path) -> None:
    fresh = Cluster(tmp_path)
    fresh.ssh("b").mkdir()
    (fresh.ssh("b") / "config").write_text("# mine\n")
    before = fresh.tree()
    assert fresh.run(entry="remove").changes == [0, 0]
    assert fresh.tree() == before


@pytest.mark.soak
def test_removal_takes_away_what_is_the_clusters(cluster: Cluster) -> None:
    before = cluster.tree()
    cluster.run(ssh_keys_name="two")
    assert len(cluster.admitted("a", "two")) == 2
    assert cluster.run(entry="remove", ssh_keys_name="two").changes == [2, 2]
    assert cluster.tree() == before, "two clusters do not disturb each other"

    cluster.run(entry="remove", ssh_keys_remove_keys=False)
    left = (cluster.ssh("b") / "train-cluster").iterdir()
    assert sorted(path.name for path in left) == ["id_ed25519", "id_ed25519.pub"]
    assert cluster.admitted("b") == []
