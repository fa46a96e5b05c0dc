"""What is wrong with the hosts: ``python -m train doctor``, over playbooks/doctor.yml."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from train.cli import playbooks, scaling
from train.cli.ansible_options import Inventory
from train.cli.events import Variables
from train.gang.doctor.records import Scaling
from train.gang.plan.ranks import PlanError

_STYLES = {"fail": "bold red", "warning": "yellow", "info": "dim"}
#: The page of the last run, in the folder of all.
PAGE = "report.html"
#: Below this part of what it was, a number has become worse.
_WORSE = 0.5


def examine(inventory: Inventory, variables: Variables) -> tuple[playbooks.Outcome, Any]:
    """Run the playbook; return its outcome and what was found, None if it did not come to that."""
    outcome = playbooks.run_playbook("doctor.yml", inventory, variables)
    return outcome, outcome.result("doctor").get("examined")


def scale(
    examined: Any,
    inventory: Inventory,
    variables: Variables,
    say: Callable[[str], None],
    model: str,
    batch: int,
) -> Scaling | None:
    """Measure how training a network with so many examples a host scales on the hosts that train,
    if nothing is in the way.
    """
    wrong = [one["where"] for one in examined["findings"] if one["severity"] == "fail"]
    there = {h: [*one["leases"], *one["jobs"]] for h, one in examined["checkups"].items()}
    busy = [f"{host} ({taken[0]})" for host, taken in there.items() if taken]
    if wrong or busy:
        why = "what would fail" if wrong else "the jobs that run"
        say(f"no collectives alongside {why} on {', '.join(dict.fromkeys(wrong or busy))}")
        return None
    try:
        return scaling.measure(inventory, variables, examined["trains"], say, model, batch)
    except (PlanError, ArithmeticError, OSError, ValueError) as error:
        examined["findings"].insert(
            0,
            {
                **{"severity": "fail", "what": "training-fails", "where": "all hosts"},
                **{"found": str(error), "expected": "a training that completes", "remedy": ""},
            },
        )
        return None


def keep(examined: Mapping[str, Any], folder: Path) -> Mapping[str, Any] | None:
    """Keep what was found in a file of its own; return what the run before it has found, of the
    same parts and one of the same hosts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    earlier = sorted(folder.glob("*.json"))
    name = time.strftime("%Y%m%d-%H%M%S", time.localtime(examined["at"]))
    (folder / f"{name}.json").write_text(json.dumps(examined, indent=1), encoding="utf-8")
    for path in reversed(earlier):
        try:
            before: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        same = before.get("parts") == examined["parts"]
        if same and set(before.get("checkups", ())) & set(examined["checkups"]):
            return before
    return None


def worse(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what is worse than in an earlier run: new findings, lower rates of hosts and paths."""
    known = {(one["what"], one["where"]) for one in before["findings"]}
    said = [
        f"new: {one['where']}: {one['found']}"
        for one in now["findings"]
        if one["severity"] != "info" and (one["what"], one["where"]) not in known
    ]
    for host, checkup in now["checkups"].items():
        earlier = before["checkups"].get(host, {})
        pairs = {
            "write rate": (earlier.get("write_rate"), checkup.get("write_rate"), "MiB/s"),
            "free space": (earlier.get("free"), checkup.get("free"), "MiB"),
        }
        for peer, link in now["links"].get(host, {}).items():
            past = before.get("links", {}).get(host, {}).get(peer, {})
            pairs[f"rate to {peer}"] = (past.get("sent_mbit"), link.get("sent_mbit"), "Mbit/s")
        for name, (was, value, unit) in pairs.items():
            if was and value and value < _WORSE * was:
                said.append(f"{host}: {name} was {was:g}, is {value:g} {unit}")
    return said


def show(examined: Mapping[str, Any], console: Console) -> None:
    """Print the findings, the worst first, and a line about what was examined."""
    checkups, links = examined["checkups"], examined["links"]
    for one in examined["findings"]:
        if one["severity"] == "info":
            continue
        console.print(
            Text(f"{one['severity']:7}", _STYLES[one["severity"]]), one["where"], end=": "
        )
        console.print(Text(one["found"]), soft_wrap=True)
        if one["expected"]:
            console.print(Text(f"        expected: {one['expected']}", "dim"), soft_wrap=True)
        if one["remedy"]:
            console.print(Text(f"        remedy: {one['remedy']}", "dim"), soft_wrap=True)
    rates = [
        link["sent_mbit"]
        for peers in links.values()
        for link in peers.values()
        if link.get("sent_mbit")
    ]
    times = [
        link["rtt_ms"] for peers in links.values() for link in peers.values() if "rtt_ms" in link
    ]
    said = f"{len(checkups)} hosts"
    if rates and times:
        said += (
            f", {len(rates)} paths: {min(rates):.0f} to {max(rates):.0f} Mbit/s, "
            f"{min(times):.2f} to {max(times):.2f} ms"
        )
    counts = {name: sum(f["severity"] == name for f in examined["findings"]) for name in _STYLES}
    if examined.get("scaling"):
        console.print(Text("\n".join(scaling.text(examined["scaling"]))))
    console.print(Text(f"{said}; {counts['fail']} would fail, {counts['warning']} warnings"))


def table(examined: Mapping[str, Any]) -> Table:
    """Return the hosts as a table."""
    header = ("host", "cores", "memory", "TensorFlow", "GPUs", "login", "clock", "free")
    shown = Table(*header, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for host, checkup in examined["checkups"].items():
        login = examined["logins"].get(host)
        shown.add_row(
            *(host, f"{checkup['usable_cores']:g}", f"{checkup['memory'] / 1024:.1f} GiB"),
            checkup["packages"].get("tensorflow", "-"),
            str(len(checkup["gpus"])),
            f"{login['seconds']:.2f} s" if login else "-",
            f"{login['clock']:+.2f} s" if login else "-",
            f"{checkup['free'] / 1024:.1f} GiB",
        )
    return shown
