"""The role ``firewall`` on a host: what is loaded, and what happens to rules that lock one out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.firewall_role import Host, params, places, programs, rules

pytest_plugins = ("tests.firewall_role",)


def test_set_up_once(host: Host) -> None:
    first = rules.Firewall(params()).look()
    assert first["differences"][0] == "the table inet train is not loaded"
    host.set_up()
    assert rules.Firewall(params()).look()["differences"] == []
    assert host.loaded == Path(places.RULES).read_text()
    assert host.guard == ""
    host.calls.clear()
    assert not rules.Firewall(params()).apply(dry=False)["changed"]
    assert len(host.calls) == 1


def test_a_new_member_changes_the_rules(host: Host) -> None:
    host.set_up()
    wanted = params(members=[["192.0.2.1"], ["192.0.2.8"]])
    result = rules.Firewall(wanted).apply(dry=True)
    assert result["differences"] == [f"{places.RULES} has other rules"]
    assert "192.0.2.7" in result["diff"]["before"]
    assert "192.0.2.8" in result["diff"]["after"]
    assert "192.0.2.8" not in host.loaded
    host.set_up(members=wanted["members"])
    assert "192.0.2.8" in host.loaded


def test_check_mode_changes_nothing(host: Host, tmp_path: Path) -> None:
    assert rules.Firewall(params()).apply(dry=True)["changed"]
    assert list(tmp_path.iterdir()) == []
    assert {call[:2] for call in host.calls} == {("/usr/sbin/nft", "-j")}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda host: setattr(host, "loaded", ""), "not loaded"),
        (
            lambda host: setattr(host, "loaded", host.loaded + "accept"),
            "not the one that was confirm",
        ),
        (lambda _: Path(places.RULES).write_text("table inet train\n"), "has other rules"),
        (lambda _: Path(places.UNIT_FILE).unlink(), "train-firewall.service has another content"),
        (lambda _: Path(places.DROP_IN_FILE).unlink(), "train-firewall.conf has another content"),
        (lambda _: Path(places.ENABLED).unlink(), "is not enabled"),
        (lambda _: Path(places.LISTED).unlink(), "not the one that was confirmed"),
    ],
)
def test_damage_is_seen(host: Host, damage: Callable[[Host], None], said: str) -> None:
    host.set_up()
    damage(host)
    differences = rules.Firewall(params()).look()["differences"]
    assert len(differences) == 1
    assert said in differences[0]


@pytest.mark.parametrize("before", [True, False])
def test_rules_that_were_taken_back_are_not_kept(host: Host, before: bool) -> None:
    if before:
        host.set_up()
    former = host.loaded
    locking = params(ports=["22"])
    rules.Firewall(locking).apply(dry=False)
    assert "22\n" in host.loaded
    host.fire()
    with pytest.raises(programs.FirewallError, match="taken back after 30 s"):
        rules.Firewall(locking).confirm()
    assert host.loaded == former
    assert Path(places.RULES).exists() == before
    assert rules.Firewall(params()).look()["ready"] == before


def test_rules_that_nft_refuses_are_not_loaded(host: Host) -> None:
    host.set_up()
    former = host.loaded
    host.refuse_rules = True
    with pytest.raises(programs.FirewallError, match="syntax error"):
        rules.Firewall(params(ports=["1"])).apply(dry=False)
    assert (host.loaded, host.guard) == (former, "")
    assert rules.Firewall(params()).look()["ready"]


def test_a_guard_of_an_aborted_run_does_not_take_the_next_rules_back(host: Host) -> None:
    rules.Firewall(params(ports=["1"])).apply(dry=False)
    host.calls.clear()
    rules.Firewall(params()).apply(dry=False)
    order = [call[0] + " " + call[1] for call in host.calls if call[0].startswith("system")]
    assert order.index("systemctl stop") < order.index("systemd-run --quiet")


def test_the_guard_loads_what_was_confirmed_or_deletes_the_table(host: Host) -> None:
    rules.Firewall(params(confirm_timeout=7)).apply(dry=False)
    command = next(call for call in host.calls if call[0] == "systemd-run")
    assert "--on-active=7s" in command
    assert f"then /usr/sbin/nft -f {places.RULES}; else" in command[-1]
    assert "delete table inet train" in command[-1]


def test_removal_leaves_nothing(host: Host, tmp_path: Path) -> None:
    host.set_up()
    assert rules.remove_all(dry=True)["changed"]
    assert host.loaded
    assert rules.remove_all(dry=False)["changed"]
    assert host.loaded == ""
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert not rules.remove_all(dry=False)["changed"]
