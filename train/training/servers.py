"""The servers of a training with parameter servers, and the chief's watch over them.

By itself, TensorFlow's server never ends, and a chief waits forever for a frozen server (a stopped
process, a paused host, a network that drops packets). gRPC's keepalive does not help, because
servers treat its pings as abuse (too_many_pings). Neither does
TF_PSS_ENABLE_COORDINATION_SERVICE (TensorFlow 2.21). Therefore:

* The chief finally shuts down every server (``Watch.shutdown``): it puts a value into a queue in
  the server's process, where ``serve`` waits for it. If the chief's port closes without such a
  request, the chief has failed.
* Both sides probe each other's gRPC port every few seconds for the settings frame that starts
  HTTP/2. The kernel accepts connections for a frozen process, but only a live one sends a frame.
* The chief repeatedly closes its connections to a frozen worker until the worker responds. gRPC
  then reports that the worker is unavailable. ClusterCoordinator continues as if it had been
  killed, and uses it again once it responds. TensorFlow 2.21 sometimes fails to use it again: each
  step of the worker then ends in an error, and the other workers make its steps.
"""

from __future__ import annotations

import contextlib
import enum
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from host.plain_text import note
from host.progress_records import ProgressWriter
from host.rank_environment import ENV_GRPC

from .cluster import Cluster, TrainingError
from .signals import Signals
from .tensorflow_internals import lost_workers

#: Seconds without a response after which a worker is excluded, and a parameter server is lost.
LIMIT_S = 10.0
#: Seconds without any worker after which the chief gives up.
WORKERS_LIMIT_S = 60.0
#: Seconds without a response from the chief after which a server gives up.
CHIEF_LIMIT_S = 60.0
#: Seconds without progress of the chief's watch after which the chief is ended (see Watch).
STUCK_LIMIT_S = 60.0

#: Maximum milliseconds for gRPC to connect, instead of 20 s. A new graph waits that long for a
#: frozen worker.
_CONNECT_MS = 5000
#: Minimum number of parallel operations: with one, the chief and its servers deadlock.
LEAST_THREADS = 4

#: Seconds between two probes, and to wait for a response (two round trips).
_PERIOD_S = 1.0
_PATIENCE_S = 2.0
#: Seconds to wait until the program itself reports a lost parameter server, or until a shutdown
#: request arrives that the chief sent just before its end.
_GRACE_S = 2.0
#: HTTP/2's client preface with an empty settings frame, RFC 9113, section 3.4.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_HEADER_BYTES = 9
_SETTINGS_FRAME = 4
_SHUTDOWN = "shutdown"
#: Seconds for servers to accept the shutdown request.
_SHUTDOWN_S = 5.0


class Liveness(enum.Enum):
    """The result of probing a gRPC port."""

    LIVE = "is alive"
    UNRESPONSIVE = "is unresponsive"
    ENDED = "has ended"


class Peer:
    """Another task of the cluster, such as ``worker-0`` at ``host:port``.

    Raise OSError if the host cannot be resolved.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        host, _, port = address.rpartition(":")
        # Resolve once, so that later failures of a name service do not make a peer unresponsive.
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        self.places = [(str(place[0]), int(place[1])) for *_, place in found]

    def probe(self, patience: float = _PATIENCE_S) -> Liveness:
        """Probe the gRPC port; wait up to ``patience`` seconds for each of its addresses."""
        found = [_probe(place, patience) for place in self.places]
        # The members are ordered by precedence when addresses give different results.
        return next(liveness for liveness in Liveness if liveness in found)

    def cut(self) -> None:
        """Close this process's connections to the peer."""
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # closed, or only listening
                if not str(descriptor.readlink()).startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                    if connection.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    host, port = connection.getpeername()[:2]
                    # gRPC uses IPv6 sockets for IPv4, too.
                    if (host.removeprefix("::ffff:"), port) in self.places:
                        connection.shutdown(socket.SHUT_RDWR)


def _probe(place: tuple[str, int], patience: float) -> Liveness:
    try:
        with socket.create_connection(place, timeout=patience) as connection:
            connection.sendall(_PREFACE)
            header = connection.recv(_FRAME_HEADER_BYTES)
    except ConnectionRefusedError:
        return Liveness.ENDED
    except OSError:
        return Liveness.UNRESPONSIVE
    live = len(header) == _FRAME_HEADER_BYTES and header[3] == _SETTINGS_FRAME
    return Liveness.LIVE if live else Liveness.UNRESPONSIVE


def await_servers(
    cluster: Cluster, seconds: float, jobs: Sequence[str] = ("worker", "ps")
) -> list[Peer]:
    """Wait until all tasks of the types in ``jobs`` respond, and return them as peers.

    TensorFlow has no timeout for this. Raise a TrainingError that names the tasks that do not
    respond within ``seconds``.
    """
    tasks = {
        f"{job}-{index}": address
        for job in jobs
        for index, address in enumerate(cluster.addresses[job])
    }
    end = time.monotonic() + seconds
    peers: dict[str, Peer] = {}
    missing = dict(tasks)
    while True:
        for name, address in list(missing.items()):
            with contextlib.suppress(OSError):
                peers.setdefault(name, Peer(name, address))
            if name in peers and peers[name].probe() is Liveness.LIVE:
                del missing[name]
        if not missing:
            return [peers[name] for name in tasks]
        if time.monotonic() >= end:
            absent = ", ".join(
                f"{name} ({address}"
                + (")" if name in peers else ", a host name that cannot be resolved)")
                for name, address in missing.items()
            )
            raise TrainingError(f"did not join within the start timeout of {seconds:g} s: {absent}")
        time.sleep(min(0.25, max(0.0, end - time.monotonic())))


# ---------------------------------------------------------------------------------- the servers


def serve(cluster: Cluster, progress: ProgressWriter, start_timeout: float) -> None:
    """Serve the chief, as a worker or parameter server, until the chief requests a shutdown.

    Raise TrainingError if the port is in use, if the chief does not respond within
    ``start_timeout`` seconds, or if it ends or freezes without requesting a shutdown.
    """
    progress.write("waiting", force=True)
    server = _start_server(cluster)
    shutdown = threading.Event()
    asked = cluster, server.target, shutdown
    threading.Thread(target=_await_shutdown, args=asked, daemon=True).start()

    [chief] = await_servers(cluster, start_timeout, ["chief"])
    # SIGTERM ends the process after SAVE_WITHIN_S: if the whole gang is to end, the chief got it
    # as well and needs its servers for a checkpoint.
    Signals().saves = True
    progress.write("serving", force=True)
    note(f"{cluster.task}: serving {chief.name}, TensorFlow {tf.__version__}", sys.stdout)
    seen = time.monotonic()
    while not shutdown.wait(_PERIOD_S):
        found = chief.probe()
        if found is Liveness.LIVE:
            seen = time.monotonic()
        elif found is Liveness.ENDED and not shutdown.wait(_GRACE_S):
            raise TrainingError(f"{chief.name} ({chief.address}) ended prematurely")
        elif time.monotonic() - seen > CHIEF_LIMIT_S:
            reason = f"was unresponsive for {CHIEF_LIMIT_S:g} s"
            raise TrainingError(f"{chief.name} ({chief.address}) {reason}")
    time.sleep(0.5)  # let the chief receive the response
    note(f"{cluster.task}: done, {chief.name} requested the end", sys.stdout)


def _start_server(cluster: Cluster) -> Any:
    """Start TensorFlow's server of this task and return it."""
    job, index = cluster.task_type, cluster.task_index
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=inter_op_threads())
    if job == "ps":
        # Parameters are stored in host memory: GPUs are for the workers.
        config.device_count["GPU"] = 0
    try:
        return tf.distribute.Server(cluster.addresses, job, index, "grpc", config)
    except tf.errors.OpError as error:
        reason = error.message.splitlines()[0]
        where = f"{cluster.task} at {cluster.addresses[job][index]}"
        raise TrainingError(
            f"cannot serve as {where}: {reason}; check whether another process uses its port"
        ) from error


def inter_op_threads() -> int:
    """Return how many operations a task of the gang must be able to run in parallel."""
    return max(LEAST_THREADS, os.cpu_count() or 1)


def _shutdown_queue() -> Any:
    """Return the shutdown queue of the device in the current scope. All calls share this queue."""
    return tf.raw_ops.FIFOQueueV2(
        component_types=[tf.bool], shapes=[[]], capacity=1, container="", shared_name=_SHUTDOWN
    )


def _await_shutdown(cluster: Cluster, target: str, shutdown: threading.Event) -> None:
    """Set ``shutdown`` once the chief has put a value into the queue at ``target``."""
    device = f"/job:{cluster.task_type}/task:{cluster.task_index}"
    # Without the filter, a session waits for all servers of the cluster.
    config = tf.compat.v1.ConfigProto(device_filters=[device])
    with tf.Graph().as_default(), tf.device(f"{device}/device:CPU:0"):
        taken = tf.raw_ops.QueueDequeueV2(handle=_shutdown_queue(), component_types=[tf.bool])
        with tf.compat.v1.Session(target, config=config) as session:
            session.run(taken)
    shutdown.set()


# ---------------------------------------------------------------------------------- the chief


class Watch:
    """The chief's watch over its servers, in separate threads, until ``shutdown``.

    It prints a line and ends the process with exit code 1 if no worker participates for too long,
    or if a parameter server is unresponsive or has ended. Before ``follow`` is called, it does the
    same for any worker.

    Create it before TensorFlow connects to the cluster, and create all graphs before the training
    begins. A thread that makes a *new* graph (by tracing a function, even to save a checkpoint)
    sends it to all workers, and holds Python's global lock meanwhile. If a worker is frozen, that
    takes seconds once the worker is excluded, and forever before that.
    """

    def __init__(self, servers: list[Peer]) -> None:
        self._found = {server.name: Liveness.LIVE for server in servers}
        self._servers = servers
        self._coordinator: Any = None
        self._over = threading.Event()
        options = os.environ.get(ENV_GRPC, "")
        if "min_reconnect_backoff_ms" not in options:  # the user may have set it
            bound = f"grpc.min_reconnect_backoff_ms={_CONNECT_MS}"
            os.environ[ENV_GRPC] = ",".join(filter(None, [options, bound]))
        # When a worker ends, the global lock is taken together with the functions of its resources,
        # so that a worker that freezes at that moment can block the chief.
        faulthandler.dump_traceback_later(STUCK_LIMIT_S, exit=True)
        for server in servers:
            threading.Thread(target=self._watch, args=(server,), daemon=True).start()
        threading.Thread(target=self._watch_workers, daemon=True).start()

    def follow(self, coordinator: Any) -> None:
        """Record the ClusterCoordinator: from now on, workers may leave and return."""
        self._coordinator = coordinator

    def shutdown(self) -> None:
        """End the watch and ask the servers to shut down. The chief must not call them afterwards.

        End the process with ``os._exit`` afterwards, because TensorFlow's teardown waits for frozen
        servers.
        """
        self._over.set()
        faulthandler.cancel_dump_traceback_later()
        # A server that was excluded, or does not accept the request in time, ends by itself because
        # it has lost its chief.
        end = time.monotonic() + _SHUTDOWN_S
        threads = [
            threading.Thread(target=_request_shutdown, args=(server,), daemon=True)
            for server in self._servers
            if self._found[server.name] is Liveness.LIVE
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _watch(self, server: Peer) -> None:
        """Probe a server repeatedly and act on the result."""
        seen, reported = time.monotonic(), Liveness.LIVE
        while not self._over.wait(_PERIOD_S if reported is Liveness.LIVE else _PERIOD_S / 4):
            if reported is Liveness.UNRESPONSIVE:
                # Every time, so that gRPC's new connections fail as with a killed process.
                server.cut()
            probed = server.probe(_PATIENCE_S if reported is Liveness.LIVE else _PERIOD_S)
            if probed is Liveness.LIVE:
                seen = time.monotonic()
            elif probed is Liveness.UNRESPONSIVE and time.monotonic() - seen < LIMIT_S:
                continue
            if probed is not reported:
                reported = self._found[server.name] = probed
                self._report(server, probed)

    def _report(self, server: Peer, found: Liveness) -> None:
        """Report the state of a server; end the process if it cannot do without the server."""
        state = {
            Liveness.LIVE: "responds again",
            Liveness.ENDED: "has ended",
            Liveness.UNRESPONSIVE: f"was unresponsive for {LIMIT_S:g} s",
        }
        line = f"{server.name} ({server.address}) {state[found]}"
        if found is Liveness.LIVE:
            _write_line(line)
        elif self._coordinator is not None and server.name.startswith("worker-"):
            _write_line(f"{line}; the training continues without it")
        elif found is Liveness.UNRESPONSIVE or not self._over.wait(_GRACE_S):
            self._fail(line)

    def _watch_workers(self) -> None:
        """End the process if no worker participates for too long."""
        since = time.monotonic()
        while not self._over.wait(_PERIOD_S):
            faulthandler.dump_traceback_later(STUCK_LIMIT_S, exit=True)
            workers = {n: found for n, found in self._found.items() if n.startswith("worker-")}
            # If TensorFlow does not report it, only unresponsive workers count as lost.
            lost = {f"worker-{index}" for index in lost_workers(self._coordinator)}
            if any(found is Liveness.LIVE and n not in lost for n, found in workers.items()):
                since = time.monotonic()
            elif time.monotonic() - since > WORKERS_LIMIT_S:
                states = ", ".join(f"{name} {found.value}" for name, found in workers.items())
                self._fail(f"no worker has responded for {WORKERS_LIMIT_S:g} s: {states}")

    def _fail(self, line: str) -> None:
        """Print a line and end the process with exit code 1, unless ``shutdown`` was called."""
        if not self._over.is_set():
            _write_line(f"TrainingError: {line}")
            os._exit(1)


def _request_shutdown(server: Peer) -> None:
    """Ask a server to shut down. Errors are ignored, because a lost server ends by itself."""
    job, _, index = server.name.rpartition("-")
    device = f"/job:{job}/task:{index}/device:CPU:0"
    with contextlib.suppress(tf.errors.OpError), tf.device(device):
        tf.raw_ops.QueueEnqueueV2(handle=_shutdown_queue(), components=[tf.constant(True)])


def _write_line(line: str) -> None:
    """Write a line to stderr at once, even if other threads hold locks."""
    os.write(sys.stderr.fileno(), f"{line}\n".encode())
