"""The doctor's findings as a page, with maps of the paths and the curve of the scaling."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from train.cli import page, scaling
from train.gang.doctor.records import Scaling

#: What a table of the hosts shows: a name, and what of a host it is.
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


def write(examined: Mapping[str, Any], worse: Sequence[str], path: Path) -> Path:
    """Write the page and return its path."""
    severities = Counter(one["severity"] for one in examined["findings"])
    found = examined.get("scaling")
    return page.write(
        path,
        "doctor.html.j2",
        [*_maps(examined["links"]), *(_curves(found) if found else ())],
        examined=examined,
        worse=worse,
        counts={name: severities[name] for name in ("fail", "warning", "info")},
        when=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(examined["at"])),
        likeness=_likeness(examined["checkups"]),
        advice=scaling.text(found) if found else [],
    )


def _likeness(checkups: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hosts' properties, and of each whether most hosts have another value."""
    rows: dict[str, list[tuple[str, bool]]] = {host: [] for host in checkups}
    for _, of in _COLUMNS:
        values = {host: of(checkup) for host, checkup in checkups.items()}
        usual = Counter(values.values()).most_common(1)[0] if values else ("", 0)
        for host, value in values.items():
            rows[host].append((value, value != usual[0] and usual[1] > 1))
    return {"columns": [name for name, _ in _COLUMNS], "rows": rows}


def _maps(links: Mapping[str, Mapping[str, Any]]) -> Iterator[page.Chart]:
    """Yield a map of all paths for each thing that was measured of them."""
    hosts = sorted({*links, *(peer for peers in links.values() for peer in peers)})
    for title, field, more_is_better in _MAPS:
        # Both ends know the time of a round trip, the one that measured it has it.
        known = {
            pair: link[field]
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
        name: [(float(one["hosts"]), float(one[field])) for one in found["trained"]]  # type: ignore[literal-required]
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
