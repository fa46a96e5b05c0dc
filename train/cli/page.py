"""A self-contained page of tables and charts that can be mailed, archived and printed."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.gang import lines
from train.host import json_files, plain_text

if TYPE_CHECKING:
    import jinja2

#: A chart: ``title``, ``traces`` and ``layout`` for Plotly; whether it is ``wide``.
Chart = dict[str, Any]
#: A position on a chart's horizontal axis, and its name.
Mark = tuple[float, str]
Points = Sequence[tuple[float, float]]
#: Maximum numbers of points in a chart (more are thinned evenly) and of points with markers.
_POINTS, _MARKED = 10_000, 500
#: Maximum number of characters of a script's arguments.
_LONGEST = 10_000


def plotly_script() -> Traversable:
    """Return the script that draws charts.

    Raise ModuleNotFoundError on a host that watches a job, because it lacks this package.
    """
    return resources.files("plotly") / "package_data/plotly.min.js"


def write(path: Path, template: str, charts: Sequence[Chart], **values: Any) -> Path:
    """Write a page that loads nothing from a network; return its path.

    ``template`` is a file in this folder, to which ``charts`` and ``values`` are passed.
    """
    plotly = plotly_script().read_text("utf-8")
    page = templates().get_template(template).render(charts=charts, plotly=plotly, **values)
    json_files.write_text(str(path), page, mode=0o666, durable=False)
    return path


def templates(*folders: Path) -> jinja2.Environment:
    """Return the environment of the templates in this folder and in ``folders``.

    All inserted text is escaped.
    """
    import jinja2  # here because every command would wait for it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).parent, *folders]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = lines.number
    environment.filters["when"] = _when
    environment.filters["words"] = lambda words: plain_text.clean(shlex.join(words), _LONGEST)
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, sort_keys=True)
    return environment


def _when(seconds: float | None) -> str:
    """Format a Unix time in UTC; return '' if it is unknown."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) if seconds else ""


def curves(
    title: str,
    points: Mapping[str, Points],
    x_title: str = "step",
    marks: Sequence[Mark] = (),
) -> Chart:
    """Return a chart with a curve for each name, and a vertical line for each mark."""
    traces = []
    few = sum(map(len, points.values())) <= _MARKED
    for name, known in points.items():
        xs, ys = zip(*_thinned(known, max(2, _POINTS // len(points))), strict=True)
        mode = "lines+markers" if (few and len(xs) < 50) or len(xs) == 1 else "lines"
        traces.append({"type": "scatter", "mode": mode, "name": name, "x": xs, "y": ys})
    layout = {"xaxis": {"title": {"text": x_title}}, **_marked(marks)}
    return {"title": title, "traces": traces, "layout": layout}


def _thinned(points: Points, most: int) -> Points:
    """Return about ``most`` of the points, including the last one."""
    stride = -(-len(points) // most)
    kept = points[::stride]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def bars(
    title: str,
    names: Sequence[str],
    traces: list[dict[str, Any]],
    x_title: str,
    marks: Sequence[Mark] = (),
    **more: Any,
) -> Chart:
    """Return a chart with a row of bars for each name, the first one on top."""
    layout = {
        "barmode": "stack", "height": 110 + (26 if len(names) <= 12 else 20) * len(names),
        "xaxis": {"title": {"text": x_title}, "rangemode": "nonnegative"},
        # By default, Plotly orders rows by the first traces, and leaves out names if narrow.
        "yaxis": {
            "autorange": "reversed", "automargin": True, "dtick": 1, "showgrid": False,
            "categoryorder": "array", "categoryarray": names,
        },
        **_marked(marks),
    }  # fmt: skip
    traces = [{"type": "bar", "orientation": "h", "y": names, **trace} for trace in traces]
    return {"title": title, "traces": traces, "layout": layout, **more}


def _marked(marks: Sequence[Mark]) -> Chart:
    """Return the parts of a layout that draw a named vertical line at each position."""
    return {
        "shapes": [
            {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
             "line": {"dash": "dot", "width": 1, "color": "#9aa5b1"}}
            for at, _ in marks
        ],
        "annotations": [
            {"text": name, "x": at, "xanchor": "right", "yref": "paper", "y": 0,
             "yanchor": "bottom", "showarrow": False, "textangle": -90}
            for at, name in marks
        ],
    }  # fmt: skip
