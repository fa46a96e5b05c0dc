"""How training scales on these hosts: sums by TensorFlow, a short training on ever more of them, an
estimate for other networks. A part of ``python -m train doctor``.
"""

from __future__ import annotations

import math
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from statistics import fmean

from train.cli import job as jobs
from train.cli import playbooks
from train.cli.ansible_options import Inventory, Variables
from train.cli.output import complain
from train.gang import REPOSITORY
from train.gang.doctor.records import Scaling, Trained
from train.gang.plan.ranks import PlanError
from train.gang.plan.staging import WORKER
from train.gang.records import read_result
from train.host import records

COLLECTIVES = REPOSITORY / "train/collectives"
#: Steps of a short training at most and at least, the seconds that it should take, and how many
#: steps at its begin do not count.
STEPS, LEAST, TRAINING_S, WARM = 300, 60, 20.0, 20
#: Parameters of networks that the estimate is made for.
NETWORKS = (100_000, 1_000_000, 10_000_000, 25_000_000, 100_000_000)
#: Trained parameters of networks of train/worker.py, for its synthetic images.
PARAMETERS = {"mnist-cnn": 462_410, "resnet20": 269_722, "resnet56": 853_018}
#: The efficiency that is worth the hosts.
WORTH = 0.8
#: Variables of a job that the doctor's own jobs have not.
_NOT_HERE = (
    *("train_job_notify_command", "train_job_notify_webhook", "train_job_metrics_dir"),
    "train_job_checkpoint_dir",
)
#: Of a parameter.
_BYTES = 4


def fit(all_reduce_ms: Mapping[float, float], hosts: int) -> tuple[float, float]:
    """Return latency (ms) and rate (bytes a ms) of a ring in which sums of so many bytes take so
    long: each of 2 (N - 1) steps passes an N-th of the bytes on. Least squares of relative errors.
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
    """Return the ms in which a ring of hosts sums so many bytes.

    Each of its 2 (N - 1) steps passes an N-th of the bytes on. That takes as long as it took
    ``among`` so many hosts, by ``all_reduce_ms`` of so many bytes: on a line between the two
    nearest sizes, or in proportion beyond them all.
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
    """Return 1, 2, 4 … and the number of hosts itself."""
    found = [1 << power for power in range(hosts.bit_length()) if 1 << power < hosts]
    return [*found, hosts]


def measure(
    inventory: Inventory, variables: Variables, hosts: Sequence[str], model: str, batch: int
) -> Scaling:
    """Run the measurements, one job after the other, and leave nothing of them.

    Args:
        hosts: the inventory hosts that train.
        batch: the examples of a step and host.

    Raises:
        PlanError: a job did not complete; its folder on this control node is left.
    """
    began: list[str] = []

    def run(name: str, members: Sequence[str], script: str, *arguments: str) -> jobs.Result:
        job = f"doctor-{time.strftime('%Y%m%d-%H%M%S')}-{name}"
        others = " and others" if len(members) > 4 else ""
        complain("doctor", f"{name} on {', '.join(members[:4])}{others}")
        groups: dict[str, list[str]] = {kind: [] for kind in ("chief", "ps", "evaluator", "spare")}
        # Without what is for the user's own jobs.
        given = {**variables, **dict.fromkeys(_NOT_HERE, ""), "train_job_include": []}
        given["train_job_groups"] = {**groups, "worker": list(members)}
        given["train_job_max_restarts"] = 0
        began.append(job)
        result = jobs.run(script, arguments, inventory=inventory, job=job, variables=given)
        if result.state != "completed":
            raise PlanError(f"{name} on {', '.join(members)} {result.state}: {result.message}")
        return result

    interrupt = signal.default_int_handler
    before = {one: signal.signal(one, interrupt) for one in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        sums = run("sums", hosts, str(COLLECTIVES)).metrics if len(hosts) > 1 else {}
        times = {
            float(key.split("_")[2][:-2]): float(value)
            for key, value in sums.items()
            if key.startswith("all_reduce_") and math.isfinite(float(value))
        }
        trained: list[Trained] = []
        for count in counts(len(hosts)):
            slowest = max((one["step_ms"] for one in trained), default=0.0)
            steps = STEPS if not slowest else int(1e3 * TRAINING_S / slowest)
            examples = batch * count * min(STEPS, max(LEAST, steps))
            arguments = [
                *("--data", "synthetic", "--model", model, "--batch-size", str(batch * count)),
                *("--examples", str(examples), "--epochs", "1", "--export", "none"),
                *("--evaluate-every", "0"),
            ]
            result = run(f"training-{count}", hosts[:count], str(WORKER), *arguments)
            trained.append(_trained(result, count))
    finally:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        _remove(began, inventory, variables)
        for one, handler in before.items():
            signal.signal(one, handler)
    return conclude(times, trained, model, batch)


def _remove(names: Sequence[str], inventory: Inventory, variables: Variables) -> None:
    """Remove the jobs from the hosts, and from here those that completed; one that an interrupt
    has left running is stopped.
    """
    ended = []
    for name in names:
        folder = jobs.run_dir_of(name, variables)
        if (read_result(folder) or {}).get("state") == "completed":
            shutil.rmtree(folder, ignore_errors=True)
        elif jobs.stop(name, inventory, variables).code:
            complain("doctor", f"{name} could not be stopped: python -m train stop {name}")
            continue
        ended.append(name)
    given = {**variables, "train_job_doctor_jobs": ended}
    for line in playbooks.run_playbook("doctor.yml", inventory, given).messages:
        complain("doctor", line)


def _trained(result: jobs.Result, hosts: int) -> Trained:
    """Return the step time of a training: of the slowest rank, without the first steps."""
    found = []
    for path in sorted((result.run_dir / "progress").glob("*.jsonl")):
        seen = records.parse_progress(path.read_text("utf-8", errors="replace"))
        late = [
            one["step_time"] for one in seen if one.get("step", 0) > WARM and "step_time" in one
        ]
        parts = [part for part in late if all(math.isfinite(float(ms)) for ms in part.values())]
        if parts:
            names = ("compute_ms", "exchange_ms", "input_ms")
            found.append({n: fmean(float(part.get(n, 0)) for part in parts) for n in names})
    if not found:
        raise PlanError(f"{result.run_dir}: no rank reported the times of its steps")
    means = max(found, key=lambda one: sum(one.values()))
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
    """Return the estimate that follows from the sums' times (ms by MB) and the trainings."""
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
    """Return what would help a gang of all hosts."""
    exchange = last["step_ms"] - last["compute_ms"]
    if exchange <= (1 - WORTH) * last["step_ms"]:
        return []
    factor = exchange * WORTH / ((1 - WORTH) * max(last["compute_ms"], 1e-3))
    return [
        f"{exchange / last['step_ms']:.0%} of a step goes into the exchange; with "
        f"{math.ceil(batch * factor)} examples a host, or --accumulate {math.ceil(factor)}, it "
        f"would be {1 - WORTH:.0%}",
        "--exchange-precision bfloat16 halves what is exchanged (train/worker.py)",
    ]


def text(scaling: Scaling) -> list[str]:
    """Return the measurements as lines."""
    said = [
        f"TensorFlow sums {size} MB in {ms:.1f} ms" for size, ms in scaling["all_reduce_ms"].items()
    ]
    for one in scaling["trained"]:
        part = scaling["trained"][0]["step_ms"] / one["step_ms"]
        hosts = f"{one['hosts']} host{'s' if one['hosts'] > 1 else ''}"
        said.append(
            f"{scaling['model']}, {scaling['batch']} examples a host, {hosts}: "
            f"{one['step_ms']:.1f} ms a step (predicted {one['predicted_ms']:.1f}), "
            f"efficiency {part:.0%}"
        )
    if scaling["efficiency"]:
        parts = [f"{int(n) / 1e6:g} M: {e:.0%}" for n, e in scaling["efficiency"].items()]
        alone = scaling["trained"][0]["step_ms"]
        said.append(f"efficiency of steps of {alone:.0f} ms by parameters: {', '.join(parts)}")
    return said + scaling["advice"]
