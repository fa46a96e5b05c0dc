"""The role ``ssh_keys``: what a host tells and writes, and what the control node settles."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleError

from tests.conftest import REPOSITORY

ROLE = REPOSITORY / "roles/ssh_keys"
NAME = "train-cluster"


def load(path: Path) -> ModuleType:
    name = f"role_ssh_keys_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


host = load(ROLE / "library/ssh_keys.py")
plan = load(ROLE / "action_plugins/ssh_keys_plan.py")


def a_key(seed: str, kind: str = "ssh-ed25519", length: int = 32) -> str:
    """Return a public key in SSH's encoding, made of ``seed``."""
    body = (seed.encode() * length)[:length]
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind.encode(), body))
    return f"{kind} {host.base64.b64encode(blob).decode()}"


def an_answer(name: str, **changes: Any) -> dict[str, Any]:
    """Return what the module tells of a host that was set up."""
    return {
        "user": "train",
        "key": a_key(name),
        "next": "",
        "host_keys": [a_key(f"host of {name}")],
        "addresses": [],
        "digests": {"hosts": "some"},
        "written": 100,
        **changes,
    }


def settle(
    hosts: Mapping[str, Mapping[str, Any]], played: list[str] | None = None, **more: Any
) -> Any:
    """Settle a cluster of all ``hosts``, given by their variables."""
    given = {"sources": ["answer"], **more}
    return plan.settle(list(hosts), list(hosts) if played is None else played, hosts, **given)


def three() -> dict[str, dict[str, Any]]:
    """Return the variables of three hosts that have answered."""
    return {
        name: {"ansible_host": f"10.0.0.{number}", "answer": an_answer(name)}
        for number, name in enumerate(["a", "b", "c"], 1)
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/ssh_host_ed25519_key.pub").write_text(a_key("host") + " root@here\n")
    return tmp_path


class Host:
    """A home on this machine, and the module at work in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ssh = home / ".ssh"
        self.folder = self.ssh / NAME
        self.place = host.Place(str(home), NAME)

    def run(self, state: str, check: bool = False, **params: Any) -> dict[str, Any]:
        given = {
            "host_keys": f"{self.home}/keys/ssh_host_*_key.pub",
            "resolve": ["192.0.2.7"],
            "rekey": False,
            "wanted": [],
            "content": {},
            "keys": False,
            **params,
        }
        module = SimpleNamespace(
            params=given, check_mode=check, set_default_selinux_context=lambda *_: False
        )
        more = [] if state in ("known", "written", "absent") else ["train"]
        result: dict[str, Any] = getattr(host, f"run_{state}")(module, self.place, *more)
        return result

    def tree(self) -> dict[str, tuple[int, bytes]]:
        """Return mode and content of all that is in ``~/.ssh``."""
        return {
            str(path.relative_to(self.home)): (
                stat.S_IMODE(path.stat().st_mode),
                path.read_bytes() if path.is_file() else b"",
            )
            for path in sorted(self.home.rglob("*"))
            if self.ssh in (path, *path.parents)
        }


@pytest.fixture
def here(home: Path) -> Iterator[Host]:
    before = os.umask(0o077)
    yield Host(home)
    os.umask(before)


def content(*answers: tuple[str, dict[str, Any]], written: int = 100) -> dict[str, Any]:
    """Return what a host of this cluster must have."""
    hosts = {
        name: {"ansible_host": f"10.0.0.{number}", "answer": answer}
        for number, (name, answer) in enumerate(answers, 1)
    }
    return {**plan.content_of(settle(hosts).records, NAME), "written": written}


# On a host


def test_a_fresh_host_gets_a_key_that_ssh_understands(here: Host) -> None:
    assert here.run("look")["key"] == ""
    assert here.run("keys", check=True)["changed"]
    assert not here.ssh.exists(), "check mode writes nothing"

    made = here.run("keys")
    assert made["changed"]
    path = here.folder / "id_ed25519"
    shown = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(path)], capture_output=True, text=True, check=True
    )
    assert made["key"] == " ".join(shown.stdout.split()[:2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in here.folder.iterdir()] == ["id_ed25519"], "no other copy is left"
    assert here.run("keys") == {**made, "changed": False}


def test_two_ranks_of_a_machine_make_one_key(here: Host) -> None:
    told: list[str] = []
    threads = [
        threading.Thread(target=lambda: told.append(here.run("keys")["key"])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 4
    assert set(told) == {here.run("look")["key"]}


@pytest.mark.parametrize("broken", ["", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END\n"])
def test_a_broken_key_is_made_again(here: Host, broken: str) -> None:
    here.run("keys")
    (here.folder / "id_ed25519").write_text(broken)
    assert here.run("look")["key"] == ""
    assert here.run("keys")["key"]


def test_a_key_with_a_passphrase_is_none(here: Host) -> None:
    here.folder.mkdir(parents=True)
    path = here.folder / "id_ed25519"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(path)]
    subprocess.run(command, check=True)
    assert here.run("look")["key"] == ""


def test_a_host_that_is_ready_matches_the_digests(here: Host) -> None:
    key = here.run("keys")["key"]
    wanted = content(("a", an_answer("a", key=key)), ("b", an_answer("b")))
    done = here.run("written", content=wanted)
    assert done["changed"]
    assert here.run("look")["digests"] == plan.digests_of(
        {name: text for name, text in wanted.items() if name != "written"}
    )
    before = here.tree()
    assert not here.run("written", content={**wanted, "written": 200})["changed"]
    assert here.tree() == before


@pytest.mark.parametrize(
    "harm",
    [
        lambda here: (here.folder / "known_hosts").write_text(""),
        lambda here: (here.folder / "config").unlink(),
        lambda here: (here.folder / "hosts.json").write_text("{"),
        lambda here: (here.ssh / "authorized_keys").unlink(),
        lambda here: (here.ssh / "config").write_text("Host *\nInclude train-cluster/config\n"),
        lambda here: (here.ssh / "authorized_keys").chmod(0o666),
        lambda here: (here.folder / "id_ed25519").chmod(0o644),
        lambda here: here.ssh.chmod(0o770),
        lambda here: shutil.copy(here.folder / "id_ed25519", here.folder / "id_ed25519.next"),
    ],
    ids=["known_hosts", "config", "hosts", "lines", "include", "mode", "key", "folder", "spare"],
)  # fmt: skip
def test_what_was_harmed_is_seen_and_mended(here: Host, harm: Callable[[Host], None]) -> None:
    here.run("keys")
    wanted = content(("a", an_answer("a", key=here.run("look")["key"])))
    here.run("written", content=wanted)
    ready = here.run("look")["digests"]
    harm(here)
    assert here.run("look")["digests"] != ready
    assert here.run("written", content=wanted, check=True)["changed"]
    here.run("written", content=wanted)
    assert here.run("look")["digests"] == ready


def test_the_users_own_lines_stay(here: Host) -> None:
    here.ssh.mkdir()
    own = b'# mine \xff\nssh-rsa AAAA me\nfrom="10.0.0.9" ssh-ed25519 AAAA other-cluster:x'
    (here.ssh / "authorized_keys").write_bytes(own)
    (here.ssh / "config").write_bytes(b"# mine \xff\nHost *\n  User x")
    (here.ssh / "known_hosts").write_text("x ssh-rsa AAAA\n")
    (here.ssh / "id_ed25519").write_text("mine")
    before = here.tree()

    here.run("keys")
    here.run("written", content=content(("a", an_answer("a")), ("b", an_answer("b"))))
    here.run("written", content=content(("b", an_answer("b"))))
    lines = (here.ssh / "authorized_keys").read_bytes().splitlines()
    assert b"\n".join(lines[:3]) == own
    assert [line.split()[-1] for line in lines[3:]] == [b"train-cluster:b"]

    gone = here.run("absent", keys=True)
    assert gone["left"] == []
    mended = {name: (mode, text.rstrip(b"\n")) for name, (mode, text) in here.tree().items()}
    assert mended == {name: (mode, text.rstrip(b"\n")) for name, (mode, text) in before.items()}


def test_a_link_to_the_configuration_stays_one(here: Host) -> None:
    (here.home / "dotfiles").mkdir()
    (here.home / "dotfiles/config").write_text("Host x\n")
    here.ssh.mkdir()
    (here.ssh / "config").symlink_to("../dotfiles/config")
    here.run("written", content=content(("a", an_answer("a"))))
    assert (here.ssh / "config").is_symlink()
    assert "Include train-cluster/config" in (here.home / "dotfiles/config").read_text()


def test_a_full_disk_leaves_the_old_file(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = content(("a", an_answer("a")))
    here.run("written", content=wanted)
    before = here.tree()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        here.run("written", content=content(("b", an_answer("b"))))
    assert here.tree() == before


def test_a_file_of_somebody_else_is_refused(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    here.ssh.mkdir()
    (here.ssh / "config").write_text("Host x\n")
    monkeypatch.setattr(host.os, "geteuid", lambda: 4711)
    with pytest.raises(host.ProblemError, match=r"config belongs to .*: give it"):
        here.run("written", content=content(("a", an_answer("a"))))


def test_the_include_of_another_cluster_may_stand_before(here: Host) -> None:
    text = host.with_include(host.with_include("# mine\nHost x\n", "one"), "two")
    assert host.is_included(text, "one")
    assert host.is_included(text, "two")
    assert not host.is_included("Include mine\n" + text, "one")
    assert host.without_include(host.without_include(text, "two"), "one") == "# mine\nHost x\n"


def test_a_key_is_changed_in_two_steps(here: Host) -> None:
    old = here.run("keys")["key"]
    offered = here.run("keys", rekey=True)
    assert offered["key"] == old
    assert offered["next"] not in ("", old)
    assert here.run("keys", rekey=True) == {**offered, "changed": False}, "half-way: no third key"
    assert here.run("switched", check=True)["key"] == old

    switched = here.run("switched")
    assert (switched["key"], switched["next"]) == (offered["next"], "")
    # A login that has begun with the old key's public half finds the new key under the other name.
    assert (here.folder / "id_ed25519.next").exists()
    here.run("written", content=content(("a", an_answer("a", key=switched["key"]))))
    assert not (here.folder / "id_ed25519.next").exists()
    assert not here.run("switched")["changed"]


def test_after_a_break_between_switching_and_writing_keys_can_be_changed(here: Host) -> None:
    here.run("keys")
    here.run("keys", rekey=True)
    key = here.run("switched")["key"]
    again = here.run("keys", rekey=True)
    assert again["key"] == key
    assert again["next"] not in ("", key)


def test_the_key_can_be_left(here: Host) -> None:
    here.run("keys")
    here.run("written", content=content(("a", an_answer("a"))))
    before = here.tree()
    assert here.run("absent", check=True)["changed"]
    assert here.tree() == before
    assert here.run("absent")["left"] == [str(here.folder / "id_ed25519")]
    assert [p.name for p in here.folder.iterdir()] == ["id_ed25519"]
    assert not (here.ssh / "config").exists(), "what would be empty was not there before"
    assert not here.run("absent")["changed"]
    here.run("absent", keys=True)
    assert not here.folder.exists()


def test_a_host_without_public_keys_says_what_to_do(here: Host) -> None:
    shutil.rmtree(here.home / "keys")
    with pytest.raises(host.ProblemError, match="is sshd set up"):
        here.run("look")


def test_a_host_tells_only_what_it_is_asked(here: Host) -> None:
    here.run("written", content=content(("a", an_answer("a")), ("b", an_answer("b"))))
    told = here.run("known", wanted=["b", "x"])
    assert [record["names"] for record in told["hosts"]] == [["b"]]
    assert told["written"] == 100


def test_a_name_is_resolved_to_what_others_see(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"here": ["127.0.1.1"], "lab": ["10.0.0.1", "fe80::1%eth0", "2001:db8::1"]}

    def resolve(name: str, *_: Any) -> list[Any]:
        if name not in names:
            raise OSError("unknown")
        return [(0, 0, 0, "", (address, 0)) for address in names[name]]

    monkeypatch.setattr(host.socket, "getaddrinfo", resolve)
    assert host.find_addresses(["192.0.2.7"]) == [], "an address needs no look-up"
    assert host.find_addresses(["192.0.2.7", "nowhere"]) == []
    assert host.find_addresses(["lab", "here"]) == ["10.0.0.1", "2001:db8::1"]
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.2 22")
    assert host.find_addresses(["here"]) == ["10.0.0.2"]


@pytest.mark.parametrize("name", ["..", "config", "a/b", "A", "a\n", ""])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    module = SimpleNamespace(params={"name": name, "user": "", "state": "absent"}, check_mode=True)
    with pytest.raises(host.ProblemError, match="ssh_keys_name"):
        host.run(module)


# On the control node


def test_each_key_is_taken_from_its_own_machine_only() -> None:
    hosts = three()
    hosts["b"].update(train_job_address="2001:db8::2", ssh_keys_from=["10.9.0.0/16"])
    lines = plan.render_authorized_keys(settle(hosts).records, NAME).splitlines()
    assert lines[0] == f'from="10.0.0.1",restrict,pty {a_key("a")} train-cluster:a'
    assert lines[1].startswith('from="10.0.0.2,10.9.0.0/16,2001:db8::2",restrict,pty ')
    assert len(lines) == 3


def test_hosts_are_known_under_all_their_names_with_their_port() -> None:
    hosts = three()
    hosts["b"].update(train_job_address="b.lab", ansible_port="2222")
    records = settle(hosts).records
    known = plan.render_known_hosts(records).splitlines()
    assert known[0] == f"a,10.0.0.1 {a_key('host of a')}"
    assert known[1].split(" ")[0] == "[b]:2222,[b.lab]:2222,[10.0.0.2]:2222"
    config = plan.render_config(records, NAME)
    assert "Host b\n    HostName b.lab\nHost b b.lab 10.0.0.2\n    Port 2222\n" in config


def test_ssh_reads_the_configuration_as_it_is_meant(tmp_path: Path) -> None:
    hosts = three()
    hosts["b"].update(train_job_address="b.lab", ansible_port=2222)
    path = tmp_path / "config"
    path.write_text(plan.render_config(settle(hosts).records, NAME) + "Host *\n  User other\n")

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


def test_ranks_of_one_machine_are_names_of_one_host() -> None:
    hosts = three()
    hosts["b2"] = {"ansible_host": "10.0.0.2", "answer": an_answer("b")}
    both = settle(hosts)
    hosts["b2"].pop("answer")
    once = settle(hosts, ["a", "b", "c"])
    assert both.records == once.records
    assert [record["names"] for record in once.records] == [["a"], ["b", "b2"], ["c"]]
    assert once.missing == []


def known_by(hosts: Mapping[str, Any], written: int = 100) -> dict[str, Any]:
    """Return what a host tells that was written when these had answered."""
    return {"written": written, "hosts": json.loads(json.dumps(settle(hosts).records))}


def test_a_host_that_does_not_answer_stays() -> None:
    hosts = three()
    before = settle(hosts)
    known = [known_by(hosts)]
    hosts["b"].pop("answer")
    assert settle(hosts).unknown == ["b"]
    after = settle(hosts, known=known)
    assert after.records == before.records
    assert (after.missing, after.unknown) == (["b"], [])


def test_a_limit_takes_nobody_out() -> None:
    hosts = three()
    before = settle(hosts)
    known = [known_by(hosts)]
    for name in ("b", "c"):
        hosts[name].pop("answer")
    assert settle(hosts, ["a"], known=known).records == before.records


def test_a_host_that_left_the_inventory_is_taken_out() -> None:
    hosts = three()
    known = [known_by(hosts)]
    del hosts["b"]
    hosts["c"].pop("answer")
    assert [record["names"] for record in settle(hosts, known=known).records] == [["a"], ["c"]]


def test_the_newest_knowledge_counts() -> None:
    hosts = three()
    old = known_by(hosts, written=100)
    hosts["b"]["answer"]["key"] = a_key("b again")
    new = known_by(hosts, written=200)
    hosts["b"].pop("answer")
    for known in ([old, new], [new, old]):
        authorized = plan.render_authorized_keys(settle(hosts, known=known).records, NAME)
        assert a_key("b again") in authorized
        assert f"{a_key('b')} " not in authorized


def test_one_host_of_each_state_is_asked() -> None:
    hosts = three()
    hosts["d"] = {"ansible_host": "10.0.0.4"}
    assert plan.who_knows(settle(hosts)) == ["a"]
    hosts["c"]["answer"].update(written=200)
    hosts["b"]["answer"].update(written=0)
    assert plan.who_knows(settle(hosts)) == ["a", "c"]
    del hosts["d"]
    assert plan.who_knows(settle(hosts)) == [], "nobody is missing"


def test_both_keys_are_taken_while_keys_change() -> None:
    hosts = three()
    hosts["b"]["answer"]["next"] = a_key("b next")
    settled = settle(hosts)
    assert settled.pending == ["b"]
    authorized = plan.render_authorized_keys(settled.records, NAME)
    assert a_key("b") in authorized
    assert a_key("b next") in authorized
    assert plan.render_config(settled.records, NAME).count("id_ed25519.next") == 3
    assert "id_ed25519.next" not in plan.render_config(settle(three()).records, NAME)


def decide(hosts: Mapping[str, Any], batch: list[str], **args: Any) -> dict[str, Any]:
    """Return what the action plugin tells."""
    action = object.__new__(plan.ActionModule)
    given = {"rekey": False, "name": NAME, **args}
    result: dict[str, Any] = action._result(settle(hosts), NAME, batch, given)
    return result


def test_nothing_is_to_be_done_where_all_is_ready() -> None:
    hosts = three()
    digests = plan.digests_of(plan.content_of(settle(hosts).records, NAME))
    for variables in hosts.values():
        variables["answer"]["digests"] = digests
    told = decide(hosts, ["a", "b", "c"])
    assert told["work"] is False
    assert "content" not in told, "a ready run carries no texts"
    hosts["c"]["answer"]["digests"] = {**digests, "include": "no"}
    assert decide(hosts, ["a", "b", "c"])["work"] is True


def test_new_keys_wait_until_every_host_knows_them() -> None:
    hosts = three()
    hosts["b"]["answer"]["next"] = a_key("b next")
    assert decide(hosts, ["a", "b", "c"])["switch"] is True

    told = decide(hosts, ["a", "b"])  # c has failed since it answered
    assert told["switch"] is False
    assert "c has to know the new ones first" in told["notes"][0]

    hosts["c"].pop("answer")
    told = decide(hosts, ["a", "b"])
    assert told["switch"] is False
    assert any("c has to know" in note for note in told["notes"])


class CountedHosts(dict[str, Any]):
    """The variables of all hosts; counts how often those of one are asked for."""

    asked = 0

    def __getitem__(self, name: str) -> Any:
        self.asked += 1
        return super().__getitem__(name)


def test_the_variables_of_500_hosts_are_asked_for_once_each() -> None:
    def cluster(count: int) -> CountedHosts:
        return CountedHosts(
            (
                f"n{number}",
                {
                    "ansible_host": f"10.0.{number // 250}.{number % 250 + 1}",
                    "answer": an_answer(f"n{number}"),
                },
            )
            for number in range(count)
        )

    sizes = {}
    for count in (250, 500):
        hosts = cluster(count)
        names = list(dict.keys(hosts))
        # Some are missing, so that all the ways are gone.
        known = [known_by(dict(hosts))]
        for name in names[:10]:
            dict.__getitem__(hosts, name).pop("answer")
        hosts.asked = 0
        settled = plan.settle(names, names, hosts, ["answer"], known)
        assert hosts.asked == count
        assert len(settled.records) == count
        content = plan.content_of(settled.records, NAME)
        sizes[count] = sum(len(text) for text in content.values())
    assert sizes[500] < 2.1 * sizes[250], "what a host gets grows with the number of hosts"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ansible_host": "10.0.0.2"}, "a and b are two machines with one address, 10.0.0.2"),
        ({"ansible_port": "22x"}, "a: ansible_port is 22x, not a port|is 22x, not a port"),
        ({"ssh_keys_port": 70000}, "is 70000, not a port"),
        ({"ssh_keys_from": "10.0.0.1"}, "ssh_keys_from is a text"),
        ({"ssh_keys_from": ['10.0.0.1" x']}, "use IP addresses and networks"),
        ({"ssh_keys_address": "*"}, "ssh can take no host"),
        ({"ssh_keys_address": "x\nProxyCommand y"}, "ssh can take no host"),
        ({"ssh_keys_address": "localhost"}, "a: localhost is another machine on each host"),
    ],
)
def test_a_wrong_inventory_is_refused(changes: dict[str, Any], message: str) -> None:
    hosts = three()
    hosts["a"].update(changes)
    with pytest.raises(plan.InputError, match=message):
        settle(hosts)


def test_two_users_of_one_machine_are_refused() -> None:
    hosts = three()
    hosts["a2"] = {"ansible_host": "10.0.0.1", "answer": an_answer("a", user="other")}
    with pytest.raises(plan.InputError, match="two users, train and other"):
        settle(hosts)


def test_a_template_that_fails_names_its_host() -> None:
    class Failing(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            raise AnsibleError("'lab' is undefined")

    with pytest.raises(plan.InputError, match="a: 'lab' is undefined"):
        settle({"a": Failing()})


@pytest.mark.parametrize(
    "changes",
    [
        {"key": a_key("a") + '\nssh-ed25519 AAAA thief'},
        {"key": 'command="x" ' + a_key("a")},
        {"key": "ssh-ed25519 AAAA"},
        {"key": a_key("a", "ssh-rsa", 300)},
        {"host_keys": []},
        {"host_keys": ["@cert-authority * " + a_key("a")]},
        {"user": "train\n    ProxyCommand thief"},
        {"addresses": None},
        {"digests": []},
    ],
)  # fmt: skip
def test_what_a_host_tells_is_not_trusted(changes: dict[str, Any]) -> None:
    """One host that lies does not reach the files of the others, and does not stop them."""
    hosts = three()
    before = settle(hosts)
    known = [known_by(hosts)]
    hosts["b"]["answer"].update(changes)
    settled = settle(hosts, known=known)
    assert list(settled.refused) == ["b"]
    assert settled.records == before.records, "what was known before stays"
    lying = json.loads(json.dumps(before.records))
    lying[1].update({name: value for name, value in changes.items() if name in lying[1]})
    if lying != before.records:
        hosts["b"].pop("answer")
        assert settle(hosts, known=[{"written": 1, "hosts": lying}]).unknown == ["b"]


@pytest.mark.parametrize("known", [{}, {"written": "x", "hosts": []}, {"written": 1, "hosts": [7]}])
def test_what_a_host_tells_of_others_may_be_nothing(known: dict[str, Any]) -> None:
    hosts = three()
    hosts["b"].pop("answer")
    assert settle(hosts, known=[known]).unknown == ["b"]


def test_a_host_cannot_let_itself_in_from_anywhere() -> None:
    hosts = three()
    thief = ["192.0.2.66", "0.0.0.0/0", '1.1.1.1",command="x']
    hosts["b"]["answer"]["addresses"] = thief
    assert settle(hosts).records == settle(three()).records
    known = known_by(three())
    known["hosts"][1].update(**{"from": thief}, addresses=thief, endpoints=[["10.0.0.1", 22]])
    hosts["b"].pop("answer")
    assert settle(hosts, known=[known]).records == settle(three()).records
    # Of a name, the host alone knows the address; but addresses are all that it can tell.
    hosts = {"n": {"answer": an_answer("n", addresses=thief)}}
    assert settle(hosts).records[0]["from"] == ["192.0.2.66"]


def test_a_host_cannot_call_itself_another_one() -> None:
    hosts = three()
    hosts["b"]["answer"].update(names=["a"], endpoints=[["10.0.0.1", 22]], address="10.0.0.1")
    assert settle(hosts).records == settle(three()).records


def test_a_host_without_an_address_says_what_to_set() -> None:
    hosts = {"a": {"answer": an_answer("a")}, "b": {"answer": an_answer("b")}}
    assert "set ssh_keys_from" in settle(hosts).refused["a"]
    hosts["a"]["answer"]["addresses"] = ["10.0.0.1"]
    assert list(settle(hosts).refused) == ["b"]


def test_ranks_of_this_machine_need_no_keys() -> None:
    hosts = {name: {"ansible_host": "localhost"} for name in ("localhost-0", "localhost-1")}
    settled = settle(hosts)
    assert (settled.records, settled.missing) == ([], [])


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
    assert "gateway" not in plan.render_known_hosts(settle(hosts).records)
    hosts["b"]["ansible_port"] = 2202
    known = plan.render_known_hosts(settle(hosts).records).splitlines()
    assert known[1].startswith("b,10.0.0.2,[gateway]:2202 ")
