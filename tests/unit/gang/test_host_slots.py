"""Host lists with slots: reading, refusals that name the line, the inventory in Ansible."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lab import REPOSITORY, run
from train.gang import host_slots
from train.gang.errors import UserError
from train.gang.host_slots import FIRST_PORT, MAX_SLOTS, HostSlots

HOSTS = st.sampled_from(
    ["node-1", "node-2", "gpu07.lab.example.org", "192.0.2.11", "10.0.0.5", "a_b", "localhost"]
)
#: Text before, between and after the parts of a line.
SPACE = st.sampled_from([" ", "\t", "   "])


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, str, int, str]:
    """Return a line, its host, the slots it adds, and how they are written."""
    host, count, space = draw(HOSTS), draw(st.integers(1, 16)), draw(SPACE)
    form = draw(st.sampled_from(["bare", "slots", "colon"]))
    text = {
        "bare": host,
        "slots": f"{host}{space}{draw(st.sampled_from(['slots', 'cpu', 'count']))}"
        f"{draw(st.sampled_from(['=', ' = ', '= ']))}{count}",
        "colon": f"{host}:{count}",
    }[form]
    if form == "slots" and draw(st.booleans()):
        text += f"{space}{draw(st.sampled_from(['max_slots', 'max-slots']))}={count + 1}"
    text = draw(st.sampled_from(["", " ", "\t"])) + text
    text += draw(st.sampled_from(["", " ", "  # comment", "#x slots=3", "\r"]))
    return text, host, 1 if form == "bare" else count, form


EMPTY = st.sampled_from(["", "   ", "# node-9 slots=4", "\t# comment", "\r"])


@settings(max_examples=100, deadline=None)
@given(st.lists(lines() | EMPTY.map(lambda text: (text, "", 0, "")), min_size=1, max_size=12))
def test_generated_files_give_the_slots_of_mpirun(
    file: list[tuple[str, str, int, str]],
) -> None:
    # mpirun adds up the lines of a host, and refuses `slots=` for a host that it knows.
    wanted: dict[str, int] = {}
    refused = 0
    for number, (_, host, count, form) in enumerate(file, 1):
        if host in wanted and form == "slots":
            refused = refused or number
        if host:
            wanted[host] = wanted.get(host, 0) + count
    text = "\n".join(line for line, *_ in file)
    if refused:
        with pytest.raises(UserError, match=rf"^hosts, line {refused}: .* is listed twice"):
            host_slots.parse_file(text, "hosts")
    elif not wanted:
        with pytest.raises(UserError, match="hosts lists no hosts"):
            host_slots.parse_file(text, "hosts")
    else:
        found = host_slots.parse_file(text, "hosts")
        assert [(entry.host, entry.slots) for entry in found] == [*wanted.items()]
        assert len(host_slots.ranks_of(found)) == sum(wanted.values())


WRONG = {
    "node-1 slots=0": "slots is '0', but must be a whole number of 1 or more",
    "node-1 slots=-1": "slots is '-1'",
    "node-1 slots=two": "slots is 'two'",
    "node-1 slots=": "slots is ''",
    "node-1:": "no number of slots after the colon",
    "node-1:4:2": "node-1:4:2 is not HOST:SLOTS",
    "node-1:x": "slots is 'x'",
    "node-1:4 slots=4": "slots is given twice",
    "node-1 slots=4 max_slots=2": "max_slots=2 is less than the 4 slots of node-1",
    "node-1 slots=4 binding=user": "binding=user is unknown: use slots=N",
    "node-1 node-2": "node-2 is unknown",
    "rank 0=node-1 slot=1": "0=node-1 is unknown",
    "^node-1": "^node-1 is not a host name or an address",
    "-oProxyCommand=x": "is not a host name or an address",
    "$(touch x)": "is not a host name or an address",
    "{{ x }} slots=2": "is not a host name or an address",
    "node-[1:3]": "is not a host name or an address",
    "[2001:db8::1": "is not an address in brackets",
    "[node-1]:2": "is not an address in brackets",
    "@node-1": "no user before the @",
    "me@node-1 user=you": "user is given twice",
    "node-1 user=-x": "'-x' is not a valid user name",
    "node-1 slots=100000": f"a host has at most {MAX_SLOTS} ranks",
    "node-1 slots=4 port=65534": "port=65534 with 4 slots is outside of 1024 to 65535",
    "node-1 port=80": "port=80 with 1 slots is outside of 1024",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(UserError) as refusal:
        host_slots.parse_file(f"# a comment\n\nnode-7\n{line}\nnode-8\n", "/etc/hosts.mpi")
    assert str(refusal.value).startswith("/etc/hosts.mpi, line 4: ")
    assert WRONG[line] in str(refusal.value)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    refusal = ""
    try:
        found = host_slots.parse_file(text, "hosts")
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith(("hosts, line ", "hosts lists no hosts"))
    else:
        assert host_slots.parse_list(host_slots.source_of(found)) == found


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:2,b:3", [HostSlots("a", 2), HostSlots("b", 3)]),
        ("a, b ,", [HostSlots("a"), HostSlots("b")]),
        ("a,a,b", [HostSlots("a", 2), HostSlots("b")]),
        ("2001:db8::1,fe80::2", [HostSlots("2001:db8::1"), HostSlots("fe80::2")]),
        # All of it is an address, whose last part is 4.
        ("2001:db8::1:4", [HostSlots("2001:db8::1:4")]),
        ("[2001:db8::1]:4,[::1]", [HostSlots("2001:db8::1", 4), HostSlots("::1")]),
        ("me@a:2", [HostSlots("a", 2, "me")]),
        ("a slots=2 user=me port=20000,", [HostSlots("a", 2, "me", 20000)]),
    ],
)
def test_lists_of_the_command_line(text: str, hosts: list[HostSlots]) -> None:
    assert host_slots.parse_list(text) == hosts
    # Ansible gets, and the job stores, the same list.
    assert host_slots.parse_list(host_slots.source_of(hosts)) == hosts


def test_hosts_with_one_slot_remain_a_plain_list() -> None:
    plain = host_slots.source_of(host_slots.parse_list("a,2001:db8::1"))
    assert plain == "a,2001:db8::1,"
    assert not host_slots.is_source(plain)
    with pytest.raises(UserError, match=r"^'b:': b: has no number of slots"):
        host_slots.parse_list("a,b:")


def test_a_file_is_text_of_limited_size(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"\xef\xbb\xbfnode-1 slots=2\r\nnode-2\r\n")
    assert host_slots.read_file(file) == [HostSlots("node-1", 2), HostSlots("node-2")]
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        host_slots.read_file(file)
    file.write_bytes(b"node-1\n" * 200_000)
    with pytest.raises(UserError, match="is larger than 1 MiB"):
        host_slots.read_file(file)


def test_names_of_ranks_are_unique() -> None:
    hosts = [HostSlots("a", 2), HostSlots("a-slot-1")]
    with pytest.raises(UserError, match="would both be called a-slot-1"):
        host_slots.ranks_of(hosts)


def inventory(*sources: str) -> dict[str, Any]:
    """Return what Ansible reads from inventory sources."""
    options = [word for source in sources for word in ("-i", source)]
    done = run(str(Path(sys.executable).parent / "ansible-inventory"), "--list", *options)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout, object_hook=_plain)
    return loaded


def _plain(value: dict[str, Any]) -> Any:
    """Return a text that Ansible shows as one that is not a template."""
    return value.get("__ansible_unsafe", value)


def test_ansible_makes_a_rank_of_each_slot(tmp_path: Path) -> None:
    (tmp_path / "mpi").write_text("node-1 slots=2\n2001:db8::1\n")
    config = tmp_path / "lab.host_slots.yml"
    plugin = "tensorflow_ansible.cluster.host_slots"
    config.write_text(f"plugin: {plugin}\nhostfile: mpi\n")
    source = host_slots.source_of(host_slots.read_file(tmp_path / "mpi"))
    for read in (inventory(source), inventory(str(config))):
        assert read["worker"]["hosts"] == ["node-1-slot-0", "node-1-slot-1", "2001:db8::1"]
        ranks = read["_meta"]["hostvars"]
        assert ranks["node-1-slot-0"] == {"ansible_host": "node-1", "train_job_port": FIRST_PORT}
        assert ranks["node-1-slot-1"]["train_job_port"] == FIRST_PORT + 1
        assert ranks["2001:db8::1"] == {"ansible_host": "2001:db8::1"}
    example = inventory(str(REPOSITORY / "inventory/host-file"))
    assert len(example["worker"]["hosts"]) == 14
    assert example["_meta"]["hostvars"]["node-3-slot-1"]["ansible_user"] == "train"
    # A list without slots is Ansible's own, in which the number is the port of SSH.
    assert inventory("a:2222,")["_meta"]["hostvars"]["a"] == {"ansible_port": 2222}
