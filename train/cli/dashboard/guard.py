"""Checks each request before a page sees it, and adds the headers that protect the pages.

Refused are requests with another host name, without a session, or with a body that is too large,
and forms that another site or another session has made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from train.cli.dashboard.access import Access

#: Maximum numbers of bytes of a form, and of its fields.
FORM_BYTES, FORM_FIELDS = 16_384, 20
#: The field of each form with the session's key.
FORM_KEY = "key"
#: The paths that need no session.
LOGIN, STATIC = "/login", "/static/"
#: Seconds after a wrong password in which no other one is checked.
WRONG_PASSWORD_S = 1.0
_METHODS = ("GET", "POST")

#: Everything comes from this server, and scripts only from files. Plotly adds styles to its charts.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, forms would have no origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Form = Mapping[str, str]


class RefusalError(Exception):
    """A request is refused.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """Passes permitted requests to ``app``, with ``cookie`` and ``form`` in their state.

    Args:
        refuse: returns the answer to a refused request, for its status and message.
    """

    def __init__(
        self, app: ASGIApp, access: Access, port: int, refuse: Callable[[int, str], Response]
    ) -> None:
        self._app, self._access, self._refuse = app, access, refuse
        self._cookie = f"train-{port}"  # browsers do not separate the cookies of two ports
        self._checking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            response = await self._check(scope, receive)
        except RefusalError as error:
            response = self._refuse(error.status, str(error))
        if response is not None:
            await response(scope, receive, send_protected)
        else:
            await self._app(scope, receive, send_protected)

    async def _check(self, scope: Scope, receive: Receive) -> Response | None:
        """Return the answer to a request that opens a session; None for one to pass on.

        Raise RefusalError if the request is not permitted.
        """
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.is_host(hosts[0]):
            raise RefusalError(
                421, "This dashboard has another name: open the address that it printed."
            )
        if scope["method"] not in _METHODS:
            raise RefusalError(405, "This method is not supported.")
        path = scope["path"]
        cookie = self._session_of(headers)
        form: Form = {}
        if scope["method"] == "POST":
            _check_origin(headers, hosts[0])
            form = await _read_form(headers, receive)
        token = QueryParams(scope["query_string"]).get("token")
        if token is not None and scope["method"] == "GET" and path == "/":
            if not self._access.is_token(token):
                raise RefusalError(
                    403, "The token is wrong. Open the address that the command prints."
                )
            return self._opened()
        if path == LOGIN and scope["method"] == "POST":
            async with self._checking:
                if self._access.is_password(form.get("password", "")):
                    return self._opened()
                await asyncio.sleep(WRONG_PASSWORD_S)
            raise RefusalError(403, "The password is wrong.")
        if not cookie and path != LOGIN and not path.startswith(STATIC):
            if self._access.password and scope["method"] == "GET":
                return RedirectResponse(LOGIN, 303)
            raise RefusalError(
                403, "You have no session. Open the address with the token that the command prints."
            )
        if scope["method"] == "POST":
            if not self._access.is_form_key(cookie, form.get(FORM_KEY, "")):
                raise RefusalError(403, "The form is not from this session. Load the page again.")
            if self._access.read_only:
                raise RefusalError(403, "This dashboard is read-only (--read-only).")
        scope["state"] = {**scope.get("state", {}), "cookie": cookie, "form": form}
        return None

    def _session_of(self, headers: Headers) -> str:
        """Return the cookie of the request's session, or an empty string."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found and self._access.is_session(found.value) else ""

    def _opened(self) -> Response:
        """Return an answer that opens a session, and shows the first page without the token."""
        response = RedirectResponse("/", 303)
        value = self._access.new_session()
        response.set_cookie(self._cookie, value, httponly=True, samesite="strict")
        return response


def _check_origin(headers: Headers, host: str) -> None:
    """Raise RefusalError if a form comes from another site, as far as the browser reports it."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if site != "same-origin" or (origin is not None and origin.partition("://")[2] != host):
        raise RefusalError(403, "The form is from another site.")


async def _read_form(headers: Headers, receive: Receive) -> Form:
    """Return the fields of a form. Raise RefusalError if it is too large or not a form."""
    too_large = RefusalError(413, f"The form is larger than {FORM_BYTES} bytes.")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > FORM_BYTES:
        raise too_large
    if not headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise RefusalError(415, "This is not a form.")
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
        if len(body) > FORM_BYTES:
            raise too_large
    try:
        fields = parse_qs(body.decode("utf-8"), max_num_fields=FORM_FIELDS)
    except ValueError:
        raise RefusalError(400, "The form cannot be read.") from None
    return {name: values[0] for name, values in fields.items()}
