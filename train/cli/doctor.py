"""Reports problems of the hosts, which playbooks/doctor.yml finds, and how training scales on them.

To measure scaling, it sums tensors over all hosts, and trains briefly on 1, 2, 4 … and all hosts.
From the results, it estimates how other networks would scale.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.text import Text

from train.cli import page, playbooks
from train.cli.ansible_options import Inventory, Variables
from train.cli.job import Result, run, run_dir_of, stop
from train.cli.output import Exit, announce, complain, exit_code, print_table
from train.gang import PACKAGE, run_folders, suggestions
from train.gang.doctor import COLLECTIVES, PARTS, findings
from train.gang.doctor.doctor_records import Examined, Finding, Scaling, Trained
from train.gang.errors import UserError
from train.gang.job_records import read_result
from train.gang.login_failures import names_of
from train.gang.plan.script_files import WORKER
from train.host import frameworks, progress_records
from train.host.checkup import Checkup
from train.host.links import Link

_STYLES = {"fail": "bold red", "warning": "yellow", "info": "dim"}
#: A rate is worse if it is below this part of its earlier value.
_WORSE = 0.5
#: The columns of the printed table.
_HEADER = ("host", "cores", "memory", "TensorFlow", "GPUs", "login", "clock", "free")
#: The columns of the table of hosts on the page: a name, and the property of a host.
_COLUMNS = (
    ("framework", lambda host: f"{_name_of_framework(host)} {_framework(host)}"),
    ("cores", lambda host: f"{host['usable_cores']:g} of {host['cores']}"),
    ("memory, GiB", lambda host: f"{host['memory'] / 1024:.1f}"),
    ("GPUs", lambda host: ", ".join(gpu.get("name", "") for gpu in host["gpus"])),
    ("processor", lambda host: host["cpu"]),
    ("kernel", lambda host: host["kernel"]),
    ("C library", lambda host: host["libc"]),
)
#: The maps: a name, the field of a network path, the factor from the field's unit to the unit in
#: the name, and whether more is better.
_MAPS = (
    ("Rate, Gbit/s", "sent_mbit", 1e-3, True),
    ("Round trip, ms", "rtt_ms", 1.0, False),
    ("Retransmitted, %", "resent", 100.0, False),
)

#: The script that measures the sums.
SUMS = PACKAGE / "collectives"
#: Maximum and minimum number of steps of a short training, its target in seconds, and the number of
#: first steps that do not count.
STEPS, LEAST, TRAINING_S, WARM = 300, 60, 20.0, 20
#: Numbers of parameters to make the estimate for.
NETWORKS = (100_000, 1_000_000, 10_000_000, 25_000_000, 100_000_000)
#: Number of trained parameters of networks of train/worker.py, for its synthetic images.
PARAMETERS = {"mnist-cnn": 462_410, "resnet20": 269_722, "resnet56": 853_018}
#: The lowest efficiency that makes more hosts worthwhile.
WORTH = 0.8
#: Job variables that the doctor's own jobs ignore.
_NOT_HERE = (
    *("train_job_notify_command", "train_job_notify_webhook", "train_job_metrics_dir"),
    *("train_job_checkpoint_dir", "train_job_replace"),
)
#: Bytes per parameter.
_BYTES = 4


def examine(args: Namespace, variables: Variables) -> int:
    """Print the problems of the hosts and of their network paths, and save the results."""
    parts = [part for part in args.only or PARTS if part != COLLECTIVES or not args.quick]
    given = {**variables, "train_job_doctor_quick": args.quick, "train_job_doctor_parts": parts}
    announce("doctor", f"examining the hosts: {', '.join(parts)}")
    outcome = playbooks.run_playbook("doctor.yml", args.inventory, given)
    examined: Any = outcome.result("gang_examine").get("examined")
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
    # Texts from hosts are not markup.
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    if args.json:
        print(json.dumps(examined, sort_keys=True))
    else:
        checkups = examined["checkups"].values()
        name = next((frameworks.NAMES.get(c["framework"], "framework") for c in checkups), "")
        header = [name if name and word == "TensorFlow" else word for word in _HEADER]
        print_table(header, [_row(examined, host) for host in _all_hosts(examined)], width)
        _show(examined, console)
    folder = run_dir_of("", variables) / "doctor"
    try:
        before = _keep(examined, folder)
        worse = _worse(before, examined) if before else []
        written = _write(examined, worse, folder / "report.html")
    except OSError as error:
        complain("doctor", f"the results were not saved: {error}")
    else:
        if not args.json:
            for line in worse:
                console.print(f"since the last run: {line}")
            console.print(f"report: {written}", soft_wrap=True)
    counts = _counts(examined)
    if examined["unreachable"]:
        return code or Exit.UNREACHABLE
    return code or (Exit.REFUSED if counts["fail"] else int(counts["warning"] > 0))


def _scale(examined: Examined, args: Namespace, variables: Variables) -> Scaling | None:
    """Measure how training scales on the training hosts.

    Return None if problems or running jobs prevent this. If it fails, add a finding and return
    None.
    """
    wrong = [one["where"] for one in examined["findings"] if one["severity"] == "fail"]
    there = {h: [*one["leases"], *one["jobs"]] for h, one in examined["checkups"].items()}
    busy = [f"{host} ({taken[0]})" for host, taken in there.items() if taken]
    checkups = examined["checkups"].items()
    others = [host for host, one in checkups if one["framework"] != frameworks.TENSORFLOW]
    if wrong or busy or others:
        why = "problems" if wrong else "running jobs" if busy else "another framework"
        where = names_of(list(dict.fromkeys(wrong or busy or others)))
        complain("doctor", f'skipping the part "collectives" because of {why} on {where}')
        return None
    try:
        hosts = examined["trains"]
        return _measure(args.inventory, variables, hosts, args.model, args.batch)
    except (UserError, ArithmeticError, OSError, ValueError) as error:
        finding = Finding(
            severity="fail",
            what="training-fails",
            where="all hosts",
            found=str(error),
            expected="a completed training job",
            remedy="",
        )
        examined["findings"].insert(0, finding)
        return None


def _keep(examined: Examined, folder: Path) -> Examined | None:
    """Save the results, and return those of the last earlier run that can be compared.

    Such a run examined the same parts, and at least one of the same hosts. Return None if there is
    none.
    """
    run_folders.create(folder, exist_ok=True)
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
    """List what is worse than in an earlier run: new findings, lower rates of hosts and paths."""
    before_findings = {(finding["what"], finding["where"]) for finding in before["findings"]}
    said = [
        f"new: {finding['where']}: {finding['found']}"
        for finding in now["findings"]
        if finding["severity"] != "info"
        and (finding["what"], finding["where"]) not in before_findings
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
                said.append(f"{host}: {name} fell from {was:g} to {value:g} {unit}")
    return said


def _show(examined: Examined, console: Console) -> None:
    """Print the findings, worst first, and a line about what was examined."""
    for one in findings.merged(examined["findings"]):
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
    said = _hosts(examined)
    if rates and times:
        said += f", {_count(len(rates), 'path')}: {min(rates):.0f} to {max(rates):.0f} Mbit/s, "
        said += f"{min(times):.2f} to {max(times):.2f} ms"
    counts = _counts(examined)
    if examined["scaling"]:
        console.print(Text("\n".join(text_of(examined["scaling"]))))
    warnings = _count(counts["warning"], "warning")
    console.print(Text(f"{said}; {_count(counts['fail'], 'failure')}, {warnings}"))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _all_hosts(examined: Examined) -> list[str]:
    """Return the hosts that were examined and those that could not be."""
    return list(
        dict.fromkeys([*examined["checkups"], *examined["unreachable"], *examined["failed"]])
    )


def _hosts(examined: Examined) -> str:
    """Return a text with the number of hosts, and how many of them were not examined."""
    hosts = _all_hosts(examined)
    missing = len(hosts) - len(examined["checkups"])
    said = _count(len(hosts), "host")
    return f"{said} ({missing} not examined)" if missing else said


def _counts(examined: Examined) -> Counter[str]:
    return Counter(one["severity"] for one in examined["findings"])


def _name_of_framework(checkup: Checkup) -> str:
    """Return the framework of jobs on a host. Results of older versions name none."""
    return checkup.get("framework", frameworks.TENSORFLOW)


def _framework(checkup: Checkup) -> str:
    """Return the version of a host's framework, or an empty string."""
    return checkup["packages"].get(_name_of_framework(checkup), "")


def _row(examined: Examined, host: str) -> list[str]:
    checkup, login = examined["checkups"].get(host), examined["logins"].get(host)
    if checkup is None:
        why = "unreachable" if host in examined["unreachable"] else "no answer"
        return [host, why, *["-"] * (len(_HEADER) - 2)]
    row = [host, f"{checkup['usable_cores']:g}", f"{checkup['memory'] / 1024:.1f} GiB"]
    row += [_framework(checkup) or "-", str(len(checkup["gpus"]))]
    row += [f"{login['seconds']:.2f} s", f"{login['clock']:+.2f} s"] if login else ["-", "-"]
    return [*row, f"{checkup['free'] / 1024:.1f} GiB"]


def _write(examined: Examined, worse: Sequence[str], path: Path) -> Path:
    values = values_of(examined, worse)
    return page.write(path, "doctor.html.j2", charts_of(examined), **values)


def charts_of(examined: Examined) -> list[page.Chart]:
    """Return the charts about examined hosts."""
    found = examined["scaling"]
    return [*_maps(examined["links"]), *(_curves(found) if found else ())]


def values_of(examined: Examined, worse: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values for the template about examined hosts."""
    found = examined["scaling"]
    return {
        "examined": examined,
        "worse": worse,
        "counts": _counts(examined),
        "findings": findings.merged(examined["findings"]),
        "hosts": _hosts(examined),
        "missing": [host for host in _all_hosts(examined) if host not in examined["checkups"]],
        "likeness": _likeness(examined["checkups"]),
        "advice": text_of(found) if found else [],
    }


def _likeness(checkups: Mapping[str, Checkup]) -> dict[str, object]:
    """Return a table of the hosts' properties.

    Each value comes with whether it differs from the most common value, if several hosts have that.
    """
    rows: dict[str, list[tuple[str, bool]]] = {host: [] for host in checkups}
    for _, of in _COLUMNS:
        values = {host: of(checkup) for host, checkup in checkups.items()}
        usual = Counter(values.values()).most_common(1)[0] if values else ("", 0)
        for host, value in values.items():
            rows[host].append((value, value != usual[0] and usual[1] > 1))
    return {"columns": [name for name, _ in _COLUMNS], "rows": rows}


def _maps(links: Mapping[str, Mapping[str, Link]]) -> Iterator[page.Chart]:
    """Yield a map of all network paths for each measurement."""
    hosts = sorted({*links, *(peer for peers in links.values() for peer in peers)})
    for title, field, factor, more_is_better in _MAPS:
        known: dict[tuple[str, str], float] = {}
        for host, peers in links.items():
            for peer, link in peers.items():
                if field in link:
                    known[host, peer] = factor * link[field]  # type: ignore[literal-required]
        if field == "rtt_ms":  # measured at one end, valid for both
            known = {(peer, host): value for (host, peer), value in known.items()} | known
        if known:
            cells = [[known.get((host, peer)) for peer in hosts] for host in hosts]
            trace = {
                "type": "heatmap", "z": cells, "x": hosts, "y": hosts, "hoverongaps": False,
                "colorscale": "Viridis", "reversescale": not more_is_better,
                "texttemplate": "%{z:.4g}" if len(hosts) <= 12 else "",
                # The scale starts at 0 so that small differences do not look large.
                "zmin": 0, "zmax": max(known.values()) or 1.0,
            }  # fmt: skip
            axis = {"automargin": True, "type": "category"}
            axes = {"xaxis": {"title": {"text": "to"}, **axis}}
            axes["yaxis"] = {"autorange": "reversed", **axis}
            layout = {"height": 200 + 22 * len(hosts), **axes}
            yield {"title": title, "traces": [trace], "layout": layout}


def _curves(scaling: Scaling) -> Iterator[page.Chart]:
    steps = {
        name: [(training["hosts"], training[field]) for training in scaling["trained"]]  # type: ignore[literal-required]
        for name, field in (("measured", "step_ms"), ("predicted", "predicted_ms"))
    }
    title = f"ms per step of {scaling['model']}, {scaling['batch']} examples per host"
    yield page.curves(title, steps, "hosts")
    if scaling["efficiency"]:
        points = [(float(n), 100 * part) for n, part in scaling["efficiency"].items()]
        alone = scaling["trained"][0]["step_ms"]
        title = f"Efficiency of all hosts, with {alone:.0f} ms per step on one host, %"
        chart = page.curves(title, {"": points}, "parameters")
        chart["layout"]["xaxis"]["type"] = "log"
        yield chart


def fit(all_reduce_ms: Mapping[float, float], hosts: int) -> tuple[float, float]:
    """Return the latency (ms) and rate (bytes per ms) of a ring that fit the measured times best.

    ``all_reduce_ms`` has the times in ms by number of bytes. Each of the 2 (N - 1) steps of a ring
    of N hosts passes on an N-th of the bytes. The squares of the relative errors are minimized.
    """
    steps = 2 * (hosts - 1)
    points = [(size / hosts, ms / steps) for size, ms in all_reduce_ms.items()]
    if len(points) == 1:
        return 0.0, points[0][0] / points[0][1]
    weights = [1 / ms**2 for _, ms in points]
    mean_x, mean_y = (fmean(values, weights) for values in zip(*points, strict=True))
    above = fmean([(x - mean_x) * (y - mean_y) for x, y in points], weights)
    below = fmean([(x - mean_x) ** 2 for x, _ in points], weights)
    slope = max(above / below, 1e-12)
    return max(0.0, mean_y - slope * mean_x), 1 / slope


def all_reduce(size: float, hosts: int, all_reduce_ms: Mapping[float, float], among: int) -> float:
    """Estimate the time in ms that a ring of ``hosts`` takes to sum ``size`` bytes.

    ``all_reduce_ms`` has the times in ms by number of bytes that were measured on ``among`` hosts.
    The time of a step is interpolated between the two nearest sizes, or scaled beyond the largest.
    """
    steps = [(sent / among, ms / (2 * (among - 1))) for sent, ms in sorted(all_reduce_ms.items())]
    sent = size / hosts
    if len(steps) == 1 or sent > steps[-1][0]:
        step = steps[-1][1] * sent / steps[-1][0]
    else:
        above = next((n for n, (x, _) in enumerate(steps) if x >= sent and n), 1)
        (x0, y0), (x1, y1) = steps[above - 1 : above + 1]
        step = max(0.0, y0 + (y1 - y0) * (sent - x0) / (x1 - x0))
    return 2 * (hosts - 1) * step


def counts(hosts: int) -> list[int]:
    """Return the numbers of hosts to train on: 1, 2, 4 … and the number of all hosts."""
    found = [1 << power for power in range(hosts.bit_length()) if 1 << power < hosts]
    return [*found, hosts]


def _measure(
    inventory: Inventory, variables: Variables, hosts: Sequence[str], model: str, batch: int
) -> Scaling:
    """Measure the sums and the short trainings with one job after another, and remove the jobs.

    Raise UserError if a job fails. The local folder of this job is kept.
    """
    began: list[str] = []

    def train_on(name: str, members: Sequence[str], script: str, *arguments: str) -> Result:
        job = f"doctor-{time.strftime('%Y%m%d-%H%M%S')}-{name}"
        others = " and others" if len(members) > 4 else ""
        complain("doctor", f"{name} on {', '.join(members[:4])}{others}")
        groups: dict[str, list[str]] = {kind: [] for kind in ("chief", "ps", "evaluator", "spare")}
        # Without settings that are only for the user's own jobs.
        job_variables = {**variables, **dict.fromkeys(_NOT_HERE, ""), "train_job_include": []}
        job_variables["train_job_groups"] = {**groups, "worker": list(members)}
        job_variables["train_job_max_restarts"] = 0
        began.append(job)
        result = run(script, arguments, inventory=inventory, job=job, variables=job_variables)
        if result.state != "completed":
            raise UserError(f"{name} on {', '.join(members)} {result.state}: {result.message}")
        return result

    interrupt = signal.default_int_handler
    before = {
        signum: signal.signal(signum, interrupt) for signum in (signal.SIGTERM, signal.SIGHUP)
    }
    before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        sums = train_on("sums", hosts, str(SUMS)).metrics if len(hosts) > 1 else {}
        times = {
            float(key.split("_")[2][:-2]): float(value)
            for key, value in sums.items()
            if key.startswith("all_reduce_") and math.isfinite(float(value))
        }
        trained: list[Trained] = []
        for count in counts(len(hosts)):
            slowest = max((training["step_ms"] for training in trained), default=0.0)
            steps = STEPS if not slowest else int(1e3 * TRAINING_S / slowest)
            examples = batch * count * min(STEPS, max(LEAST, steps))
            arguments = [
                *("--data", "synthetic", "--model", model, "--batch-size", str(batch * count)),
                *("--examples", str(examples), "--epochs", "1", "--export", "none"),
                *("--evaluate-every", "0"),
            ]
            result = train_on(f"training-{count}", hosts[:count], str(WORKER), *arguments)
            trained.append(_trained(result, count))
    finally:
        for signum in before:
            signal.signal(signum, signal.SIG_IGN)
        _remove(began, inventory, variables)
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return conclude(times, trained, model, batch)


def _remove(names: Sequence[str], inventory: Inventory, variables: Variables) -> None:
    """Stop and remove the jobs on the hosts; remove the local folders of those that completed."""
    ended = []
    for name in names:
        folder = run_dir_of(name, variables)
        if (read_result(folder) or {}).get("state") == "completed":
            shutil.rmtree(folder, ignore_errors=True)
        elif stop(name, inventory, variables).code:
            command = suggestions.command("stop", job=name)
            complain("doctor", f"{name} could not be stopped; try `{command}`")
            continue
        ended.append(name)
    given = {**variables, "train_job_doctor_jobs": ended}
    for line in playbooks.run_playbook("doctor.yml", inventory, given).messages:
        complain("doctor", line)


def _trained(result: Result, hosts: int) -> Trained:
    """Return the mean step time of the slowest rank of a training, without the first steps.

    Raise UserError if no rank reported step times.
    """
    rank_means = []
    for path in sorted((result.run_dir / "progress").glob("*.jsonl")):
        seen = progress_records.parse_progress(path.read_text("utf-8", errors="replace"))
        late = [
            record["step_time"]
            for record in seen
            if record.get("step", 0) > WARM and "step_time" in record
        ]
        parts = [part for part in late if all(math.isfinite(float(ms)) for ms in part.values())]
        if parts:
            names = ("compute_ms", "exchange_ms", "input_ms")
            rank_means.append({n: fmean(float(part.get(n, 0)) for part in parts) for n in names})
    if not rank_means:
        raise UserError(f"{result.run_dir}: no rank reported step times")
    means = max(rank_means, key=lambda parts: sum(parts.values()))
    return Trained(
        hosts=hosts,
        step_ms=round(sum(means.values()), 3),
        compute_ms=round(means["compute_ms"] + means["input_ms"], 3),
        exchange_ms=round(means["exchange_ms"], 3),
        predicted_ms=0.0,
    )


def conclude(
    times: Mapping[float, float], trained: Sequence[Trained], model: str, batch: int
) -> Scaling:
    """Return the measurements with the estimates that are based on them.

    ``times`` are those of the sums, in ms by MB. The predictions in ``trained`` are set.
    """
    sums = {1e6 * size: ms for size, ms in times.items() if ms > 0}
    hosts = trained[-1]["hosts"]
    latency, rate = fit(sums, hosts) if sums else (0.0, 0.0)
    parameters = PARAMETERS[model]
    alone = trained[0]["step_ms"]
    for one in trained:
        exchange = all_reduce(_BYTES * parameters, one["hosts"], sums, hosts) if sums else 0.0
        one["predicted_ms"] = round(alone + exchange, 3)
    efficiency = {}
    for network in NETWORKS if sums else ():
        exchange = all_reduce(_BYTES * network, hosts, sums, hosts)
        efficiency[str(network)] = round(alone / (alone + exchange), 3)
    return Scaling(
        all_reduce_ms={f"{size:g}": round(ms, 3) for size, ms in times.items()},
        latency_ms=round(latency, 3),
        rate_mb=round(rate / 1e3, 3),
        model=model,
        parameters=parameters,
        batch=batch,
        trained=list(trained),
        efficiency=efficiency,
        advice=_advice(trained[-1], batch),
    )


def _advice(last: Trained, batch: int) -> list[str]:
    exchange = last["step_ms"] - last["compute_ms"]
    if exchange <= (1 - WORTH) * last["step_ms"]:
        return []
    factor = exchange * WORTH / ((1 - WORTH) * max(last["compute_ms"], 1e-3))
    return [
        f"{exchange / last['step_ms']:.0%} of each step is spent on the exchange; with "
        f"{math.ceil(batch * factor)} examples per host, or --accumulate {math.ceil(factor)}, "
        f"this share would be {1 - WORTH:.0%}",
        "--exchange-precision bfloat16 halves the amount of data exchanged (train/worker.py)",
    ]


def text_of(scaling: Scaling) -> list[str]:
    """Return the measurements, estimates and advice as lines."""
    sums, alone = scaling["all_reduce_ms"], scaling["trained"][0]["step_ms"]
    said = [f"TensorFlow all-reduces {size} MB in {ms:.1f} ms" for size, ms in sums.items()]
    for one in scaling["trained"]:
        hosts = f"{one['hosts']} host{'s' if one['hosts'] > 1 else ''}"
        said.append(
            f"{scaling['model']}, {scaling['batch']} examples per host, {hosts}: "
            f"{one['step_ms']:.1f} ms per step (predicted {one['predicted_ms']:.1f}), "
            f"efficiency {alone / one['step_ms']:.0%}"
        )
    if scaling["efficiency"]:
        parts = [f"{int(n) / 1e6:g} M: {e:.0%}" for n, e in scaling["efficiency"].items()]
        said.append(
            f"efficiency by number of parameters, with {alone:.0f} ms per step on one host: "
            f"{', '.join(parts)}"
        )
    return said + scaling["advice"]
