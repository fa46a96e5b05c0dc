"""Pages: charts that stay small, and text that stays text."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from train.cli import page


@pytest.mark.parametrize("count", [9_999, 10_000, 10_001, 123_456])
def test_a_long_curve_is_thinned_and_keeps_its_ends(count: int) -> None:
    points = [(float(n), 0.5) for n in range(count)]
    (trace,) = page.curves("loss", {"worker-0": points})["traces"]
    assert (trace["x"][0], trace["x"][-1]) == (0.0, count - 1.0)
    assert count / 13 < len(trace["x"]) <= 10_001
    assert len(trace["x"]) == len(trace["y"])
    assert trace["mode"] == "lines"


def test_many_curves_share_the_points_of_a_chart() -> None:
    points = [(float(n), 0.5) for n in range(10_000)]
    traces = page.curves("loss", {f"worker-{n}": points for n in range(100)})["traces"]
    assert sum(len(trace["x"]) for trace in traces) <= 100 * 101


def test_a_curve_of_few_points_has_markers() -> None:
    def modes(**points: list[tuple[float, float]]) -> list[str]:
        return [trace["mode"] for trace in page.curves("loss", points)["traces"]]

    few, many = [(float(n), 1.0) for n in range(9)], [(float(n), 1.0) for n in range(600)]
    assert modes(few=few) == ["lines+markers"]
    # A single point would not be seen without.
    assert modes(many=many, few=few, single=few[:1]) == ["lines", "lines", "lines+markers"]


def test_marks_are_lines_with_their_names() -> None:
    chart = page.bars("phases", ["a"], [{"x": [1.0]}], "s", [(2.5, "attempt 2")], wide=True)
    assert [(line["x0"], line["x1"]) for line in chart["layout"]["shapes"]] == [(2.5, 2.5)]
    assert [note["text"] for note in chart["layout"]["annotations"]] == ["attempt 2"]
    assert chart["wide"]
    assert chart["traces"] == [{"type": "bar", "orientation": "h", "y": ["a"], "x": [1.0]}]


def test_times_are_in_utc_and_an_unknown_one_is_empty() -> None:
    assert page._when(1_700_000_000.9) == "2023-11-14 22:13:20 UTC"
    assert page._when(None) == ""


def test_text_is_escaped_and_nothing_is_left_out_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "__file__", str(tmp_path / "page.py"))
    template = "{{ name }} {{ words | words }} {{ 0.5 | number }} {{ plotly | length > 1000 }}"
    (tmp_path / "x.j2").write_text(template)
    target = tmp_path / "x.html"
    given = {"name": "<script>&'", "words": ["a b", "\x1b[0m"]}
    assert page.write(target, "x.j2", [], **given) == target
    text = target.read_text()
    assert text == "&lt;script&gt;&amp;&#39; &#39;a b&#39; &#39;&#39; 0.5 True"
    with pytest.raises(jinja2.UndefinedError, match="'name' is undefined"):
        page.write(target, "x.j2", [], words=[])
    assert target.read_text() == text, "the earlier page is still there"
