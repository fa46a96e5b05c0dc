"""The addresses of the dashboard. Every name in them is compared with the known ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from train.cli.dashboard import log_views, run_files
from train.cli.dashboard.actions import DOCTOR, RESTART, STOP, TENSORBOARD, Action, Actions
from train.cli.dashboard.hosts import HostFollower
from train.cli.dashboard.pages import STATIC, Pages, UnknownError
from train.cli.dashboard.topics import Topic
from train.gang.errors import UserError
from train.host import plain_text

#: Seconds between two updates of a page.
_OVERVIEW_S, _JOB_S, _ACTION_S, _LOG_S = 1.0, 1.0, 0.5, 0.5
#: Seconds between two checks whether the dashboard ends.
_CLOSING_S = 0.25
#: Maximum number of topics to keep.
_TOPICS = 100
_HEARTBEATS = 20
#: Errors that the files of a job may cause, which hosts have filled.
_OF_DAMAGED_FILES = (
    *(ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError),
    jinja2.TemplateError,
)
#: The actions about a job, with the options of their commands.
_JOB_ACTIONS: Mapping[str, tuple[str, ...]] = {
    STOP: (),
    RESTART: ("--on-interrupt=leave",),
    TENSORBOARD: (),
}


class Routes:
    """The handlers of requests, which the guard has permitted."""

    def __init__(self, pages: Pages, hosts: HostFollower, actions: Actions) -> None:
        self._pages, self._hosts, self._actions = pages, hosts, actions
        self._topics: dict[str, Topic] = {}
        self.is_closing = False

    def application(self) -> Starlette:
        """Return the application."""
        get, post = ["GET"], ["POST"]
        routes = [
            Route("/", self.overview, methods=get),
            Route("/updates", self.overview_updates, methods=get),
            Route("/login", self.login, methods=get),
            Route("/static/{name}", self.static, methods=get),
            Route("/jobs/{job}", self.job, methods=get),
            Route("/jobs/{job}/updates", self.job_updates, methods=get),
            Route("/jobs/{job}/logs/{task}", self.log, methods=get),
            Route("/jobs/{job}/logs/{task}/updates", self.log_updates, methods=get),
            Route("/jobs/{job}/files", self.files, methods=get),
            Route("/jobs/{job}/files/{name:path}", self.file, methods=get),
            Route("/jobs/{job}/{action}", self.ask, methods=get),
            Route("/jobs/{job}/{action}", self.start_action, methods=post),
            Route("/compare", self.compare, methods=get),
            Route("/doctor", self.doctor, methods=get),
            Route("/doctor", self.run_doctor, methods=post),
            Route("/actions/{number:int}", self.action, methods=get),
            Route("/actions/{number:int}/updates", self.action_updates, methods=get),
            Route("/actions/{number:int}/end", self.end_action, methods=post),
        ]
        handlers: Mapping[Any, Any] = {
            HTTPException: self._http_error,
            UnknownError: self._unknown,
            UserError: self._refused,
            **dict.fromkeys(_OF_DAMAGED_FILES, self._damaged),
        }
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._hosts.start()
        yield
        self._actions.close()
        await run_in_threadpool(self._hosts.close)

    # Pages.

    async def overview(self, request: Request) -> Response:
        """Show hosts and jobs."""
        parts = await run_in_threadpool(self._pages.overview)
        return self._page(request, "overview.html.j2", parts=parts, updates="/updates")

    async def overview_updates(self, request: Request) -> Response:
        """Send the changes of hosts and jobs."""
        return self._updates("overview", self._pages.overview, _OVERVIEW_S)

    async def job(self, request: Request) -> Response:
        """Show a job."""
        job = request.path_params["job"]
        parts = dict(await run_in_threadpool(self._pages.job, job))
        charts = parts.pop("charts", [])
        updates = f"/jobs/{job}/updates"
        values = {"job": job, "parts": parts, "charts": charts, "updates": updates}
        return self._page(request, "job.html.j2", **values)

    async def job_updates(self, request: Request) -> Response:
        """Send the changes of a job."""
        job = request.path_params["job"]
        await run_in_threadpool(self._pages.job, job)  # it may be unknown
        return self._updates(f"job {job}", partial(self._pages.job, job), _JOB_S)

    async def log(self, request: Request) -> Response:
        """Show the log of a rank, search it, or download it."""
        job, task = request.path_params["job"], request.path_params["task"]
        attempt, wanted = (request.query_params.get(name, "") for name in ("attempt", "q"))
        path, attempts = await run_in_threadpool(self._pages.log_of, job, task, attempt)
        if "download" in request.query_params:
            return self._download(path, f"{job}-{task}.log")
        found = None
        if wanted:
            found = await run_in_threadpool(log_views.search, path, wanted[:200])
        address = f"/jobs/{job}/logs/{task}"
        values = {
            "job": job,
            "task": task,
            "attempt": attempt,
            "attempts": attempts,
            "address": address,
            "wanted": wanted,
            "found": found,
            "updates": "" if found else f"{address}/updates?attempt={attempt}",
        }
        return self._page(request, "log.html.j2", **values)

    async def log_updates(self, request: Request) -> Response:
        """Send the lines of a log as it grows."""
        job, task = request.path_params["job"], request.path_params["task"]
        attempt = request.query_params.get("attempt", "")
        path, _ = await run_in_threadpool(self._pages.log_of, job, task, attempt)
        return self._stream(self._log_events(log_views.LogFollower(path)))

    async def _log_events(self, follower: log_views.LogFollower) -> AsyncIterator[bytes]:
        """Yield the lines of a log, beginning with its end; ``first`` replaces earlier lines."""
        first, last, quiet = True, "", 0
        while True:
            lines = await run_in_threadpool(follower.read)
            current = follower.last()
            if first or lines or current != last:
                event = {"lines": lines, "current": current, "first": first}
                yield f"data: {json.dumps(event)}\n\n".encode()
                first, last, quiet = False, current, 0
            else:
                quiet += 1
                if quiet % _HEARTBEATS == 0:
                    yield b": still here\n\n"
            await asyncio.sleep(_LOG_S)

    async def files(self, request: Request) -> Response:
        """List the files of a job."""
        job = request.path_params["job"]
        run_dir = await run_in_threadpool(self._pages.check_job, job)
        found = await run_in_threadpool(run_files.list_files, run_dir)
        return self._page(request, "files.html.j2", job=job, files=found)

    async def file(self, request: Request) -> Response:
        """Download a file of a job."""
        job, name = request.path_params["job"], request.path_params["name"]
        run_dir = await run_in_threadpool(self._pages.check_job, job)
        path = await run_in_threadpool(run_files.find, run_dir, name)
        if path is None:
            raise UnknownError(f"Job {job} has no such file.")
        return self._download(path, path.name)

    async def compare(self, request: Request) -> Response:
        """Compare two jobs."""
        cookie = request.state.cookie
        first, second = (request.query_params.get(name, "") for name in ("first", "second"))
        page = await run_in_threadpool(self._pages.comparison, first, second, cookie)
        return HTMLResponse(page)

    async def doctor(self, request: Request) -> Response:
        """Show the doctor's last results."""
        return HTMLResponse(await run_in_threadpool(self._pages.doctor, request.state.cookie))

    async def login(self, request: Request) -> Response:
        """Ask for the password."""
        return self._page(request, "login.html.j2")

    async def static(self, request: Request) -> Response:
        """Send a file that pages load."""
        name = request.path_params["name"]
        if name not in STATIC:
            raise UnknownError("This file does not exist.")
        path, kind = STATIC[name]
        headers = {"Cache-Control": "private, max-age=604800"}
        return FileResponse(str(path), media_type=kind, headers=headers)

    # Actions.

    async def ask(self, request: Request) -> Response:
        """Ask before an action on a job."""
        job, action = request.path_params["job"], request.path_params["action"]
        if action not in _JOB_ACTIONS or not await run_in_threadpool(self._pages.is_listed, job):
            raise UnknownError("This page does not exist.")
        row = await run_in_threadpool(self._pages.rows.row, job, self._hosts.listed)
        return self._page(request, "ask.html.j2", job=job, action=action, row=row)

    async def start_action(self, request: Request) -> Response:
        """Start an action on a job."""
        job, action = request.path_params["job"], request.path_params["action"]
        if action not in _JOB_ACTIONS or not await run_in_threadpool(self._pages.is_listed, job):
            raise UnknownError("This page does not exist.")
        return _to(self._actions.start(action, job, _JOB_ACTIONS[action]))

    async def run_doctor(self, request: Request) -> Response:
        """Run the doctor."""
        quick = request.state.form.get("form") != "full"
        return _to(self._actions.start(DOCTOR, options=["--quick"] if quick else []))

    async def action(self, request: Request) -> Response:
        """Show an action."""
        action = self._action_of(request)
        updates = f"/actions/{action.number}/updates" if action.code is None else ""
        parts = self._pages.action(action)
        return self._page(request, "action.html.j2", action=action, parts=parts, updates=updates)

    async def action_updates(self, request: Request) -> Response:
        """Send the changes of an action."""
        action = self._action_of(request)
        return self._updates(
            f"action {action.number}", partial(self._pages.action, action), _ACTION_S
        )

    async def end_action(self, request: Request) -> Response:
        """Interrupt an action."""
        action = self._action_of(request)
        self._actions.end(action)
        return _to(action)

    def _action_of(self, request: Request) -> Action:
        action = self._actions.get(request.path_params["number"])
        if action is None:
            raise UnknownError("This action is unknown: the dashboard may have been started again.")
        return action

    # Answers.

    def _page(self, request: Request, template: str, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._pages.render(template, request.state.cookie, **values))

    def _updates(
        self, name: str, compute: Callable[[], Mapping[str, object]], interval: float
    ) -> Response:
        """Return a stream of the changes of a page, which all of its viewers share."""
        for other in [known for known, topic in self._topics.items() if not topic.viewers]:
            if len(self._topics) >= _TOPICS:
                del self._topics[other]
        topic = self._topics.setdefault(name, Topic(compute, interval))
        return self._stream(topic.events())

    def _stream(self, events: AsyncIterator[bytes]) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = self._until_closing(events)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _until_closing(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield events until the dashboard ends, which would wait for open pages otherwise."""
        yield b"retry: 1000\n\n"
        following = asyncio.ensure_future(anext(events))
        try:
            while not self.is_closing:
                await asyncio.wait([following], timeout=_CLOSING_S)
                if following.done():
                    yield following.result()
                    following = asyncio.ensure_future(anext(events))
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following

    def _download(self, path: Any, name: str) -> Response:
        headers = {"Content-Security-Policy": "sandbox; default-src 'none'"}
        kind = "application/octet-stream"
        return FileResponse(str(path), filename=name, media_type=kind, headers=headers)

    async def _http_error(self, request: Request, error: HTTPException) -> Response:
        return self._error(error.status_code, str(error.detail))

    async def _unknown(self, request: Request, error: UnknownError) -> Response:
        return self._error(404, str(error))

    async def _refused(self, request: Request, error: UserError) -> Response:
        return self._error(409, str(error))

    async def _damaged(self, request: Request, error: Exception) -> Response:
        message = f"The files for this page are damaged: {type(error).__name__}: {error}"
        return self._error(500, message)

    def refuse(self, status: int, message: str) -> Response:
        """Return the page for a refused request."""
        page = self._pages.render("error.html.j2", status=status, message=message)
        return HTMLResponse(page, status)

    def _error(self, status: int, message: str) -> Response:
        return self.refuse(status, plain_text.clean(message, 500))


def _to(action: Action) -> Response:
    return RedirectResponse(f"/actions/{action.number}", 303)
