"""What is wrong with the hosts: ``python -m train doctor``, over playbooks/doctor.yml.

The findings are kept, printed, and shown on a page with maps of the paths and the curve of the
scaling.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from train.cli import job as jobs
from train.cli import page, playbooks, scaling
from train.cli.ansible_options import Variables
from train.cli.output import Exit, complain, exit_code, print_table
from train.gang.doctor import COLLECTIVES, PARTS
from train.gang.doctor.records import Examined, Finding, Scaling
from train.gang.plan.ranks import PlanError
from train.host.checkup import Checkup
from train.host.links import Link

_STYLES = {"fail": "bold red", "warning": "yellow", "info": "dim"}
#: Below this part of what it was, a number has become worse.
_WORSE = 0.5
#: The columns of the table that is printed.
_HEADER = ("host", "cores", "memory", "TensorFlow", "GPUs", "login", "clock", "free")
#: What the page's table of the hosts shows: a name, and what of a host it is.
_COLUMNS = (
    ("TensorFlow", lambda host: host["packages"].get("tensorflow", "")),
    ("cores", lambda host: f"{host['usable_cores']:g} of {host['cores']}"),
    ("memory, GiB", lambda host: f"{host['memory'] / 1024:.1f}"),
    ("GPUs", lambda host: ", ".join(gpu.get("name", "") for gpu in host["gpus"])),
    ("processor", lambda host: host["cpu"]),
    ("kernel", lambda host: host["kernel"]),
    ("C library", lambda host: host["libc"]),
)
#: The maps: a name, the field of a path, and whether more is better.
_MAPS = (
    ("Rate, Mbit/s", "sent_mbit", True),
    ("Round trip, ms", "rtt_ms", False),
    ("Sent again, part", "resent", False),
)


def examine(args: Namespace, variables: Variables) -> int:
    """Print what is wrong with the hosts and the paths between them, and keep it."""
    parts = [part for part in args.only or PARTS if part != COLLECTIVES or not args.quick]
    given = {**variables, "train_job_doctor_quick": args.quick, "train_job_doctor_parts": parts}
    outcome = playbooks.run_playbook("doctor.yml", args.inventory, given)
    examined: Any = outcome.result("doctor").get("examined")
    if examined is None:
        code = exit_code(outcome, "doctor")
        return Exit.UNREACHABLE if code == Exit.UNREACHABLE else Exit.REFUSED
    for line in outcome.warnings:
        complain("doctor", line)
    code = 0
    if COLLECTIVES in parts:
        try:
            examined["scaling"] = _scale(examined, args, variables)
        except KeyboardInterrupt:
            code = Exit.LEFT
    width = None if sys.stdout.isatty() else 10_000
    # What comes from hosts is no markup.
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    if args.json:
        print(json.dumps(examined, sort_keys=True))
    else:
        print_table(_HEADER, _rows(examined), width)
        _show(examined, console)
    folder = jobs.run_dir_of("", variables) / "doctor"
    try:
        before = _keep(examined, folder)
        worse = _worse(before, examined) if before else []
        written = _write(examined, worse, folder / "report.html")
    except OSError as error:
        complain("doctor", f"nothing is kept: {error}")
    else:
        if not args.json:
            for line in worse:
                console.print(f"since the last time: {line}")
            console.print(f"the page: {written}", soft_wrap=True)
    counts = _counts(examined)
    return code or (Exit.REFUSED if counts["fail"] else int(counts["warning"] > 0))


def _scale(examined: Examined, args: Namespace, variables: Variables) -> Scaling | None:
    """Measure how training scales on the hosts that train, if nothing is in the way."""
    wrong = [one["where"] for one in examined["findings"] if one["severity"] == "fail"]
    there = {h: [*one["leases"], *one["jobs"]] for h, one in examined["checkups"].items()}
    busy = [f"{host} ({taken[0]})" for host, taken in there.items() if taken]
    if wrong or busy:
        why = "what would fail" if wrong else "the jobs that run"
        where = ", ".join(dict.fromkeys(wrong or busy))
        complain("doctor", f"no collectives alongside {why} on {where}")
        return None
    try:
        hosts = examined["trains"]
        return scaling.measure(args.inventory, variables, hosts, args.model, args.batch)
    except (PlanError, ArithmeticError, OSError, ValueError) as error:
        finding = Finding(
            severity="fail",
            what="training-fails",
            where="all hosts",
            found=str(error),
            expected="a training that completes",
            remedy="",
        )
        examined["findings"].insert(0, finding)
        return None


def _keep(examined: Examined, folder: Path) -> Examined | None:
    """Keep what was found; return the last run before it of the same parts and one of its hosts."""
    folder.mkdir(parents=True, exist_ok=True)
    earlier = sorted(folder.glob("*.json"))
    name = time.strftime("%Y%m%d-%H%M%S", time.localtime(examined["at"]))
    (folder / f"{name}.json").write_text(json.dumps(examined, indent=1), encoding="utf-8")
    for path in reversed(earlier):
        try:
            before: Examined = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        same = before.get("parts") == examined["parts"]
        if same and set(before.get("checkups", ())) & set(examined["checkups"]):
            return before
    return None


def _worse(before: Examined, now: Examined) -> list[str]:
    """Return what is worse than in an earlier run: new findings, lower rates of hosts and paths."""
    known = {(one["what"], one["where"]) for one in before["findings"]}
    said = [
        f"new: {one['where']}: {one['found']}"
        for one in now["findings"]
        if one["severity"] != "info" and (one["what"], one["where"]) not in known
    ]
    for host, checkup in now["checkups"].items():
        earlier: Mapping[str, Any] = before["checkups"].get(host, {})
        pairs: dict[str, tuple[float | None, float | None, str]] = {
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


def _show(examined: Examined, console: Console) -> None:
    """Print the findings, the worst first, and a line about what was examined."""
    for one in examined["findings"]:
        if one["severity"] == "info":
            continue
        severity = Text(f"{one['severity']:7}", _STYLES[one["severity"]])
        console.print(severity, one["where"], end=": ")
        console.print(Text(one["found"]), soft_wrap=True)
        for name in ("expected", "remedy"):
            if one[name]:
                console.print(Text(f"        {name}: {one[name]}", "dim"), soft_wrap=True)
    paths = [link for peers in examined["links"].values() for link in peers.values()]
    rates = [link["sent_mbit"] for link in paths if link.get("sent_mbit")]
    times = [link["rtt_ms"] for link in paths if "rtt_ms" in link]
    said = f"{len(examined['checkups'])} hosts"
    if rates and times:
        said += f", {len(rates)} paths: {min(rates):.0f} to {max(rates):.0f} Mbit/s, "
        said += f"{min(times):.2f} to {max(times):.2f} ms"
    counts = _counts(examined)
    if examined["scaling"]:
        console.print(Text("\n".join(scaling.text(examined["scaling"]))))
    console.print(Text(f"{said}; {counts['fail']} would fail, {counts['warning']} warnings"))


def _counts(examined: Examined) -> Counter[str]:
    return Counter(one["severity"] for one in examined["findings"])


def _rows(examined: Examined) -> list[list[str]]:
    """Return the table's row of each host."""
    found = []
    for host, checkup in examined["checkups"].items():
        login = examined["logins"].get(host)
        row = [host, f"{checkup['usable_cores']:g}", f"{checkup['memory'] / 1024:.1f} GiB"]
        row += [checkup["packages"].get("tensorflow", "-"), str(len(checkup["gpus"]))]
        row += [f"{login['seconds']:.2f} s", f"{login['clock']:+.2f} s"] if login else ["-", "-"]
        found.append([*row, f"{checkup['free'] / 1024:.1f} GiB"])
    return found


def _write(examined: Examined, worse: Sequence[str], path: Path) -> Path:
    """Write the page and return its path."""
    found = examined["scaling"]
    return page.write(
        path,
        "doctor.html.j2",
        [*_maps(examined["links"]), *(_curves(found) if found else ())],
        examined=examined,
        worse=worse,
        counts=_counts(examined),
        likeness=_likeness(examined["checkups"]),
        advice=scaling.text(found) if found else [],
    )


def _likeness(checkups: Mapping[str, Checkup]) -> dict[str, object]:
    """Return the hosts' properties, and of each whether most hosts have another value."""
    rows: dict[str, list[tuple[str, bool]]] = {host: [] for host in checkups}
    for _, of in _COLUMNS:
        values = {host: of(checkup) for host, checkup in checkups.items()}
        usual = Counter(values.values()).most_common(1)[0] if values else ("", 0)
        for host, value in values.items():
            rows[host].append((value, value != usual[0] and usual[1] > 1))
    return {"columns": [name for name, _ in _COLUMNS], "rows": rows}


def _maps(links: Mapping[str, Mapping[str, Link]]) -> Iterator[page.Chart]:
    """Yield a map of all paths for each thing that was measured of them."""
    hosts = sorted({*links, *(peer for peers in links.values() for peer in peers)})
    for title, field, more_is_better in _MAPS:
        # Both ends know the time of a round trip, the one that measured it has it.
        known = {
            pair: link[field]  # type: ignore[literal-required]
            for host, peers in links.items()
            for peer, link in peers.items()
            if field in link
            for pair in ([(host, peer), (peer, host)] if field == "rtt_ms" else [(host, peer)])
        }
        if known:
            cells = [[known.get((host, peer)) for peer in hosts] for host in hosts]
            trace = {
                "type": "heatmap", "z": cells, "x": hosts, "y": hosts, "hoverongaps": False,
                "colorscale": "Viridis", "reversescale": not more_is_better,
                "texttemplate": "%{z:.4g}" if len(hosts) <= 12 else "",
            }  # fmt: skip
            layout = {
                "height": 200 + 22 * len(hosts),
                "xaxis": {"title": {"text": "to"}, "automargin": True, "type": "category"},
                "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
            }
            yield {"title": title, "traces": [trace], "layout": layout}


def _curves(found: Scaling) -> Iterator[page.Chart]:
    """Yield the curves of steps and of the efficiency."""
    steps = {
        name: [(one["hosts"], one[field]) for one in found["trained"]]  # type: ignore[literal-required]
        for name, field in (("measured", "step_ms"), ("predicted", "predicted_ms"))
    }
    title = f"ms a step of {found['model']}, {found['batch']} examples a host"
    yield page.curves(title, steps, "hosts")
    if found["efficiency"]:
        points = [(float(n), 100 * part) for n, part in found["efficiency"].items()]
        alone = found["trained"][0]["step_ms"]
        title = f"Efficiency of all hosts with steps of {alone:.0f} ms, %"
        chart = page.curves(title, {"": points}, "parameters")
        chart["layout"]["xaxis"]["type"] = "log"
        yield chart
