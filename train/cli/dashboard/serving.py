"""``python -m train dashboard``: starts the server and prints its address."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import uvicorn

from train.cli.ansible_options import Variables
from train.cli.dashboard import access
from train.cli.dashboard.actions import Actions
from train.cli.dashboard.guard import Guard
from train.cli.dashboard.hosts import HostFollower
from train.cli.dashboard.pages import Pages
from train.cli.dashboard.routes import Routes
from train.cli.job import run_dir_of
from train.cli.output import Exit, complain
from train.gang.errors import UserError

#: The first port to try, and the number of ports.
PORT, PORTS = 8787, 20
#: Maximum numbers of connections, and of seconds for open requests at the end.
_CONNECTIONS, _END_S = 200, 3


class Server(uvicorn.Server):
    """A server whose signals are handled here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def serve(args: Namespace, variables: Variables) -> int:
    """Serve the dashboard until it is interrupted."""
    rules = _access_of(args, variables)
    listener = listen(rules.bind, args.port)
    port = listener.getsockname()[1]
    hosts = HostFollower(args.inventory, variables)
    server, routes = server_of(rules, hosts, Actions(args.inventory, variables), variables, port)

    def end(signum: int, frame: Any) -> None:
        routes.is_closing = server.should_exit = True

    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.signal(signum, end) for signum in signums}
    try:
        print(_address(rules, port), flush=True)
        server.run(sockets=[listener])
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return Exit.COMPLETED


def server_of(
    rules: access.Access, hosts: HostFollower, actions: Actions, variables: Variables, port: int
) -> tuple[Server, Routes]:
    """Return a server, and its routes, whose streams end when the server stops."""
    pages = Pages(rules, hosts, actions, variables)
    routes = Routes(pages, hosts, actions)
    app = Guard(routes.application(), rules, port, routes.refuse)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_END_S,
    )
    return Server(config), routes


def _access_of(args: Namespace, variables: Variables) -> access.Access:
    """Return who may use the dashboard. Raise UserError if an address lacks a password."""
    password = ""
    if args.bind and args.bind != access.LOOPBACK:
        password = access.read_password(args.password_file or "", os.environ)
        os.environ.pop(access.PASSWORD_VARIABLE, None)  # commands that it starts do not need it
        remedy = "use --bind only in a network that you trust, or else forward the port with ssh"
        complain("dashboard", f"listening on {args.bind} without encryption: {remedy}")
    elif args.password_file:
        raise UserError("--password-file is only for --bind: on this machine, the token is used")
    token = access.read_token(run_dir_of("", variables))
    return access.Access(token, password, args.bind or access.LOOPBACK, args.read_only)


def listen(address: str, port: int | None) -> socket.socket:
    """Return a listening socket on a port, or on the first free one.

    Raise UserError if there is none.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    ports = range(PORT, PORT + PORTS) if port is None else [port]
    for candidate in ports:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, candidate))
            listener.listen(64)
        except (OSError, OverflowError) as error:
            listener.close()
            is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if port is not None or not is_taken:
                why = error.strerror if isinstance(error, OSError) else "the last port is 65535"
                raise UserError(f"cannot listen on {address}:{candidate}: {why}") from None
            continue
        return listener
    raise UserError(f"the ports {PORT} to {PORT + PORTS - 1} are in use: choose one with --port")


def _address(rules: access.Access, port: int) -> str:
    """Return the line with the address of the dashboard."""
    host = f"[{rules.bind}]" if ":" in rules.bind else rules.bind
    if rules.bind in ("0.0.0.0", "::"):
        host = socket.gethostname()
    query = "" if rules.password else f"?token={rules.token}"
    return f"dashboard: http://{host}:{port}/{query} (press Ctrl-C to stop)"
