"""The file for Prometheus, read with Prometheus' own parser, and the Grafana dashboard."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.support.lab import REPOSITORY
from tests.unit.test_docs import KNOWN, METRICS
from train.gang.watch import metrics
from train.gang.watch.views import Target, View
from train.host import progress_records

DASHBOARD = REPOSITORY / "docs/grafana/train.json"
#: The labels that a scrape adds.
SCRAPED = {"job", "instance"}
FULL: dict[str, Any] = {
    **{"step": 7, "steps": 10, "epoch": 2, "epochs": 3, "loss": 0.25, "memory_mb": 2},
    **{"examples_per_s": 100.5, "steps_per_s": 3.5, "metrics": {"accuracy": 0.5}},
}


def view(task: str, phase: str = "running", **record: Any) -> View:
    made = View(Target(f"host-of-{task}", task, f"/x/{task}", "python3", task, False))
    made.state, made.last_update_at = {"phase": phase}, time.monotonic()
    made.add_progress(progress_records.parse_progress(json.dumps(record) + "\n"))
    return made


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all samples by name and labels, after a check of the rules of the format."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type == "gauge" for family in families)
    found = [sample for family in families for sample in family.samples]
    by_key = {(one.name, frozenset(one.labels.items())): one.value for one in found}
    assert len(by_key) == len(found), "a series is there twice"
    return by_key


def test_series_of_a_job() -> None:
    views = [view("chief-0", **FULL), view("worker-0", "failed", step=6, loss=math.nan)]
    found = samples(metrics.text_of("night-1", "running", 2, views))

    def value(name: str, /, **labels: str) -> float:
        return found[f"train_job_{name}", frozenset({"train_job": "night-1", **labels}.items())]

    chief = {"rank": "chief-0", "host": "host-of-chief-0"}
    worker = {"rank": "worker-0", "host": "host-of-worker-0"}
    assert [value("state", state=one) for one in metrics.STATES] == [1, 0, 0, 0, 0]
    assert [value(name) for name in ("attempt", "ranks_wanted", "ranks_up")] == [2, 2, 1]
    assert [value("step", **chief), value("step", **worker)] == [7, 6]
    assert [value("rank_up", **chief), value("rank_up", **worker)] == [1, 0]
    assert value("memory_bytes", **chief) == 2 * 2**20
    assert value("metric", name="accuracy", **chief) == 0.5
    assert math.isnan(value("loss", **worker))
    for name, labels in (("last_update", {}), ("rank_last_update", chief)):
        assert abs(value(f"{name}_timestamp_seconds", **labels) - time.time()) < 60


NAMES = st.sampled_from(['a"} 1\nx 2', "\\", '\\"', "a\rb", "{{ x }}", "\u2028", ""]) | st.text()
NUMBERS = st.floats() | st.integers() | st.text(max_size=3) | st.none()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    values=st.dictionaries(NAMES, st.floats(), max_size=4),
    record=st.dictionaries(st.sampled_from(sorted(FULL)), NUMBERS, max_size=4),
)
def test_no_value_or_name_breaks_the_file(values: dict[str, float], record: dict[str, Any]) -> None:
    watched = [view("worker-0", metrics=values), view("worker-1", **record)]
    found = samples(metrics.text_of("j", "running", 1, watched))
    named = {dict(labels)["name"] for name, labels in found if name == "train_job_metric"}
    assert named == set(watched[0].metrics) | set(watched[1].metrics)
    assert {name for name, _ in found} >= {"train_job_state", "train_job_ranks_up"}


def test_the_page_names_all_series_and_no_others() -> None:
    names = {name for name, _ in samples(metrics.text_of("j", "running", 1, [view("a", **FULL)]))}
    named = set(re.findall(r"\btrain_job_\w+", METRICS.read_text()))
    assert named - KNOWN == names - KNOWN


def test_the_dashboard_asks_for_series_that_there_are() -> None:
    loaded = json.loads(DASHBOARD.read_text())
    series = samples(metrics.text_of("j", "running", 1, [view("worker-0", **FULL)]))
    names = {name for name, _ in series}
    labels = {"le", "__name__"} | {label for _, found in series for label, _ in found}
    assert not labels & SCRAPED, "Prometheus renames them"
    panels = loaded["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 5
    assert loaded["id"] is None
    assert [one["name"] for one in loaded["templating"]["list"]] == ["datasource", "job"]
    source = {"type": "prometheus", "uid": "${datasource}"}
    asked = [loaded["templating"]["list"][1]["query"]["query"]]
    for panel in panels:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == source, panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        asked += [target["expr"] for target in panel["targets"]]
        legends = "".join(target["legendFormat"] for target in panel["targets"])
        assert set(re.findall(r"{{(\w+)}}", legends)) <= labels, panel["title"]
    shown = set(re.findall(r"\btrain_job_\w+", " ".join(asked)))
    assert shown <= names, sorted(shown - names)
    assert {"train_job_step", "train_job_loss", "train_job_state", "train_job_metric"} <= shown
    for expression in asked:
        selected = re.findall(r"(\w+)(?:=~|!=|!~|=)\"", expression)
        grouped = re.findall(r"\b(?:by|on|ignoring|group_left) ?\(([\w, ]+)\)", expression)
        used = {*selected, *", ".join(grouped).split(", ")} - {""}
        assert used <= labels, expression
