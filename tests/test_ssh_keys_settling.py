"""The role ``ssh_keys`` on the control node: who is in the cluster, and what is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roles.ssh_keys.control import settling, texts
from tests.host_roles import load
from tests.ssh_keys_role import NAME, ROLE, a_key, an_answer, known_by, settle, three

plan = load(ROLE / "action_plugins/ssh_keys_plan.py")


def test_ranks_of_one_machine_are_names_of_one_host() -> None:
    hosts = three()
    hosts["b2"] = {"ansible_host": "10.0.0.2", "answer": an_answer("b")}
    both = settle(hosts)
    hosts["b2"].pop("answer")
    once = settle(hosts, ["a", "b", "c"])
    assert both.records == once.records
    assert [record["names"] for record in once.records] == [["a"], ["b", "b2"], ["c"]]
    assert once.missing == []


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
        authorized = texts.render_authorized_keys(settle(hosts, known=known).records, NAME)
        assert a_key("b again") in authorized
        assert f"{a_key('b')} " not in authorized


def test_one_host_of_each_state_is_asked() -> None:
    hosts = three()
    hosts["d"] = {"ansible_host": "10.0.0.4"}
    assert settling.who_knows(settle(hosts)) == ["a"]
    hosts["c"]["answer"].update(written=200)
    hosts["b"]["answer"].update(written=0)
    assert settling.who_knows(settle(hosts)) == ["a", "c"]
    del hosts["d"]
    assert settling.who_knows(settle(hosts)) == [], "nobody is missing"


def decide(hosts: Mapping[str, Any], batch: list[str], **args: Any) -> dict[str, Any]:
    """Return what the action plugin tells."""
    action = object.__new__(plan.ActionModule)
    given = {"rekey": False, "name": NAME, **args}
    result: dict[str, Any] = action._result(settle(hosts), NAME, batch, given)
    return result


def test_nothing_is_to_be_done_where_all_is_ready() -> None:
    hosts = three()
    digests = texts.digests_of(texts.content_of(settle(hosts).records, NAME))
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
        settled = settling.settle(names, names, hosts, ["answer"], known)
        assert hosts.asked == count
        assert len(settled.records) == count
        content = texts.content_of(settled.records, NAME)
        sizes[count] = sum(len(text) for text in content.values())
    assert sizes[500] < 2.1 * sizes[250], "what a host gets grows with the number of hosts"


def test_ranks_of_this_machine_need_no_keys() -> None:
    hosts = {name: {"ansible_host": "localhost"} for name in ("localhost-0", "localhost-1")}
    settled = settle(hosts)
    assert (settled.records, settled.missing) == ([], [])
