"""Renders the pages and their parts from what is known about hosts and jobs."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train import VERSION
from train.cli import doctor, page, report
from train.cli.ansible_options import Variables
from train.cli.dashboard import host_rows, job_rows, run_files
from train.cli.dashboard.access import Access
from train.cli.dashboard.actions import Action, Actions
from train.cli.dashboard.growing import GrowingJob
from train.cli.dashboard.guard import FORM_KEY
from train.cli.dashboard.hosts import HostFollower
from train.cli.job import run_dir_of
from train.gang import suggestions
from train.gang.run_folders import check_id
from train.host import records
from train.host.plain_text import is_number

_HERE = Path(__file__).parent
#: The files that pages load, and their types.
STATIC: Mapping[str, tuple[Any, str]] = {
    "page.css": (_HERE.parent / "page.css", "text/css"),
    "dashboard.css": (_HERE / "static/dashboard.css", "text/css"),
    "charts.js": (_HERE.parent / "charts.js", "text/javascript"),
    "dashboard.js": (_HERE / "static/dashboard.js", "text/javascript"),
    "plotly.min.js": (page.plotly_script(), "text/javascript"),
}
#: The layout of all pages, also of those that are files otherwise.
_LAYOUT = "dashboard.html.j2"
#: Number of jobs whose files stay in memory.
_GROWING = 8
#: Minimum seconds between two versions of a job's charts.
_CHARTS_S = 2.0


class UnknownError(Exception):
    """The page does not exist. The message is for the viewer."""


@dataclass
class _Open:
    """A job whose page was opened, and the parts of its page."""

    job: GrowingJob
    lock: threading.Lock
    parts: dict[str, object]
    seen: object = None
    is_stale: bool = True  # whether the charts lack records
    drawn_at: float = float("-inf")  # when the charts were made (monotonic clock)


class Pages:
    """All pages of the dashboard."""

    def __init__(
        self, access: Access, hosts: HostFollower, actions: Actions, variables: Variables
    ) -> None:
        self._access, self._hosts = access, hosts
        self._actions, self._variables = actions, variables
        self.runs_dir = run_dir_of("", variables)
        self.rows = job_rows.JobRows(self.runs_dir)
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._templates = page.templates(_HERE / "templates")
        self._templates.filters["age"] = job_rows.age_of
        changed = (Path(str(path)).stat().st_mtime_ns for path, _ in STATIC.values())
        self._stamp = f"{VERSION}-{hash(tuple(changed)) & 0xFFFFFFFF:x}"

    def render(self, template: str, cookie: str = "", **values: Any) -> str:
        """Return a page for a session."""
        common = {
            "layout": _LAYOUT,
            "form_key": self._access.form_key(cookie) if cookie else "",
            "form_key_name": FORM_KEY,
            "read_only": self._access.read_only,
            "static": lambda name: f"/static/{name}?{self._stamp}",
            "updates": "",
            "charts": [],
            "live": False,
        }
        return self._templates.get_template(template).render({**common, **values})

    # The overview.

    def overview(self) -> dict[str, object]:
        """Return the parts of the first page."""
        self._hosts.keep()
        listed = self._hosts.listed
        values: dict[str, Any] = {
            "hosts": host_rows.rows_of(listed, host_rows.last_examined(self.runs_dir)),
            "jobs": self.rows.rows(listed),
            "actions": self._actions.all()[:8],
            "error": self._hosts.error,
            "run_command": suggestions.command("run"),
        }
        names = ("hosts", "jobs", "actions")
        return {name: self.render(f"part_{name}.html.j2", **values) for name in names}

    # A job.

    def check_job(self, job: str) -> Path:
        """Return the folder of a job here. Raise UnknownError if there is none."""
        if not records.JOB_PATTERN.fullmatch(job) or job not in self.rows.names():
            raise UnknownError(f"No job {job} is known on this machine.")
        check_id(job)
        return self.runs_dir / job

    def is_listed(self, job: str) -> bool:
        """Return whether a job is known here or on a host."""
        return job in self.rows.names() or any(
            job == known["job"] for known in self._hosts.listed["jobs"]
        )

    def job(self, job: str) -> dict[str, object]:
        """Return the parts of a job's page. Raise UnknownError if the job is unknown."""
        if job not in self.rows.names():
            return self._remote_job(job)
        opened = self._opened(job)
        with opened.lock:
            followed = self.rows.is_followed(job)
            grown = opened.job.read()
            result = opened.job.attempts[-1]["result"]
            if not followed and not (result and not result["restart"]):
                self._hosts.keep()  # only the hosts know how it is doing
            row = self.rows.row(job, self._hosts.listed)
            actions = [(action.number, action.code) for action in self._actions.of_job(job)]
            seen = (row, actions)
            opened.is_stale |= grown
            if grown or seen != opened.seen:
                opened.parts |= self._job_parts(job, opened.job, row)
                opened.seen = seen
            now = time.monotonic()
            if opened.is_stale and now - opened.drawn_at >= _CHARTS_S:
                opened.parts["charts"] = report.charts_of(opened.job.attempts)
                opened.is_stale, opened.drawn_at = False, now
            return dict(opened.parts)

    def _opened(self, job: str) -> _Open:
        if job not in self._open:
            self._open[job] = _Open(GrowingJob(self.runs_dir / job), threading.Lock(), {})
        self._open.move_to_end(job)
        while len(self._open) > _GROWING:
            self._open.popitem(last=False)
        return self._open[job]

    def _job_parts(
        self, job: str, growing: GrowingJob, row: job_rows.JobRow | None
    ) -> dict[str, object]:
        attempts = growing.attempts
        values = report.values_of(job, growing.manifest, attempts, growing.events)
        tasks = [str(rank["task"]) for rank in values["ranks"]]
        values |= {
            "row": row,
            "state": row.state if row else job_rows.UNKNOWN,
            "log_links": {task: f"/jobs/{job}/logs/{task}" for task in tasks},
            "actions": self._actions.of_job(job),
            "read_only": self._access.read_only,
            "others": [name for name in self.rows.names() if name != job],
            "attach_command": suggestions.command("attach", job=job),
        }
        names = {
            "summary": "job_summary.html.j2",
            "state": "part_state.html.j2",
            "ranks": "job_ranks.html.j2",
            "settings": "job_settings.html.j2",
            "logs": "job_logs.html.j2",
        }
        return {name: self.render(file, **values) for name, file in names.items()}

    def _remote_job(self, job: str) -> dict[str, object]:
        self._hosts.keep()
        about = next((one for one in self._hosts.listed["jobs"] if one["job"] == job), None)
        if about is None:
            raise UnknownError(
                f"No job {job} is known on this machine, and no host that answers has it."
            )
        values: dict[str, Any] = {
            "row": self.rows.row(job, self._hosts.listed),
            "about": about,
            "actions": self._actions.of_job(job),
            "attach_command": suggestions.command("attach", job=job),
        }
        return {name: self.render(f"part_{name}.html.j2", **values) for name in ("state", "remote")}

    def log_of(self, job: str, task: str, attempt: str) -> tuple[Path, list[int]]:
        """Return the path of a rank's log, and the numbers of the attempts that have one.

        ``attempt`` is a number, or empty for the last one. Raise UnknownError if that log does
        not exist.
        """
        run_dir, found = self.check_job(job), {}
        if records.TASK_PATTERN.fullmatch(task):
            numbers = [path.name for path in run_dir.glob("attempts/*")]
            folders = {number: f"attempts/{number}/" for number in filter(is_number, numbers)}
            for number, folder in {"": "", **folders}.items():
                found[number] = run_files.find(run_dir, f"{folder}logs/{task}.log")
        path = found.get(attempt)
        if path is None:
            raise UnknownError(f"Job {job} has no log of this rank and attempt here yet.")
        return path, sorted(int(number) for number, log in found.items() if number and log)

    # Other pages.

    def comparison(self, first: str, second: str, cookie: str) -> str:
        """Return the page that compares two jobs. Raise UnknownError if one is unknown."""
        found = report.compare_jobs(self.check_job(first), self.check_job(second))
        charts = report.comparison_charts(found)
        values = report.comparison_values(found)
        return self.render("compare.html.j2", cookie, charts=charts, **values)

    def doctor(self, cookie: str) -> str:
        """Return the page with the doctor's last results."""
        examined = host_rows.last_examined(self.runs_dir)
        if examined is None:
            return self.render("no_results.html.j2", cookie)
        values = doctor.values_of(examined)
        return self.render("examined.html.j2", cookie, charts=doctor.charts_of(examined), **values)

    def action(self, action: Action) -> dict[str, object]:
        """Return the parts of an action's page."""
        return {"action": self.render("part_action.html.j2", action=action)}
