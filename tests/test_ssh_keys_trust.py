"""The role ``ssh_keys`` on the control node: what it refuses of inventories and of answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.errors import AnsibleError

from roles.ssh_keys.control.inventory import InputError
from tests.ssh_keys_role import a_key, an_answer, known_by, settle, three


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
    with pytest.raises(InputError, match=message):
        settle(hosts)


def test_two_users_of_one_machine_are_refused() -> None:
    hosts = three()
    hosts["a2"] = {"ansible_host": "10.0.0.1", "answer": an_answer("a", user="other")}
    with pytest.raises(InputError, match="two users, train and other"):
        settle(hosts)


def test_a_template_that_fails_names_its_host() -> None:
    class Failing(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            raise AnsibleError("'lab' is undefined")

    with pytest.raises(InputError, match="a: 'lab' is undefined"):
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
