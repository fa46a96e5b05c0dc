"""What training with parameter servers needs beyond its steps: servers that end, and a watch.

By itself TensorFlow's server never ends, and a chief waits for ever for a server that is frozen (a
stopped process, a paused host, a network that swallows packets). gRPC's keepalive does not help: a
server takes its pings for abuse (too_many_pings); nor does TF_PSS_ENABLE_COORDINATION_SERVICE
(TensorFlow 2.21). So:

* The chief's last act is the shutdown of every server (``Watch.shutdown``): it puts a value into a
  queue that lies in the server's own process, where ``serve`` waits for it. A chief whose port is
  closed without that has failed.
* Both sides probe each other's gRPC port every few seconds for the settings frame with which HTTP/2
  begins. The kernel accepts connections for a frozen process, but only a live one sends a frame.
* The chief closes its own connections to a frozen worker, again and again until it responds. gRPC
  then reports it unavailable, and ClusterCoordinator continues without it as if it had been killed;
  once it responds, ClusterCoordinator takes it back. TensorFlow 2.21 sometimes fails to: each step
  of the worker then ends in an error, and the others make them.
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
from host.records import ENV_GRPC, ProgressWriter, note

from .cluster import Cluster, TrainingError
from .signals import Signals

#: Seconds without a response after which a worker is left out, and a parameter server is lost.
LIMIT_S = 10.0
#: Seconds without any worker after which the chief gives up.
WORKERS_LIMIT_S = 60.0
#: Seconds without a response from the chief after which a server gives up.
CHIEF_LIMIT_S = 60.0
#: Seconds without a sign of the chief's own watch after which the chief is ended (see Watch).
STUCK_LIMIT_S = 60.0

#: Milliseconds in which gRPC makes a connection or gives up, instead of 20 s: meanwhile a new graph
#: waits for a frozen worker.
_CONNECT_MS = 5000
#: Of operations: with a single one, the chief and its servers wait for one another for ever.
LEAST_THREADS = 4

#: Seconds between two probes, and for which a response is waited for (two round trips).
_PERIOD_S = 1.0
_PATIENCE_S = 2.0
#: Seconds in which the program itself reports a parameter server that has ended, or a shutdown
#: arrives that was sent just before the chief's end.
_GRACE_S = 2.0
#: HTTP/2's client preface with an empty settings frame, RFC 9113, section 3.4.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_HEADER_BYTES = 9
_SETTINGS_FRAME = 4
_SHUTDOWN = "shutdown"
#: Seconds in which servers take the request to end.
_SHUTDOWN_S = 5.0


class Liveness(enum.Enum):
    """What the probe of a gRPC port has found."""

    LIVE = "is alive"
    UNRESPONSIVE = "is unresponsive"
    ENDED = "has ended"


class Peer:
    """Another task of the cluster, such as ``worker-0`` at ``host:port``.

    Making it raises OSError where the host has no address.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        host, _, port = address.rpartition(":")
        # Once: a name service that fails later makes no peer unresponsive.
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        self.places = [(str(place[0]), int(place[1])) for *_, place in found]

    def probe(self, patience: float = _PATIENCE_S) -> Liveness:
        """Return what its gRPC port gives within ``patience`` seconds (for each of its places)."""
        found = [_probe(place, patience) for place in self.places]
        # The members stand in the order in which one of them counts for all.
        return next(liveness for liveness in Liveness if liveness in found)

    def cut(self) -> None:
        """Close this process's connections to it."""
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # it is gone, or only listens
                if not str(descriptor.readlink()).startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                    if connection.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    host, port = connection.getpeername()[:2]
                    # gRPC uses sockets of IPv6 for IPv4, too.
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
    """Return the peers of some types once they respond; TensorFlow has no limit for that.

    Raises TrainingError, with their names, where some do not within ``seconds``.
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
                f"{name} ({address}" + (")" if name in peers else ", a host without an address)")
                for name, address in missing.items()
            )
            raise TrainingError(f"not there within the start timeout of {seconds:g} s: {absent}")
        time.sleep(min(0.25, max(0.0, end - time.monotonic())))


# ---------------------------------------------------------------------------------- the servers


def serve(cluster: Cluster, progress: ProgressWriter, start_timeout: float) -> None:
    """Serve the chief, as the worker or parameter server that this process is, until it is done.

    Raises TrainingError where the port is taken, the chief did not come within ``start_timeout``
    seconds, or it ended or froze without asking for the end.
    """
    progress.write("waiting", force=True)
    server = _start_server(cluster)
    shutdown = threading.Event()
    asked = cluster, server.target, shutdown
    threading.Thread(target=_await_shutdown, args=asked, daemon=True).start()

    [chief] = await_servers(cluster, start_timeout, ["chief"])
    # SIGTERM ends the process after SAVE_WITHIN_S: the chief, which got it as well when the whole
    # gang is to end, needs its servers for a checkpoint.
    Signals().saves = True
    progress.write("serving", force=True)
    note(f"{cluster.task}: serving {chief.name}, TensorFlow {tf.__version__}", sys.stdout)
    seen = time.monotonic()
    while not shutdown.wait(_PERIOD_S):
        found = chief.probe()
        if found is Liveness.LIVE:
            seen = time.monotonic()
        elif found is Liveness.ENDED and not shutdown.wait(_GRACE_S):
            raise TrainingError(f"{chief.name} ({chief.address}) has ended before it was done")
        elif time.monotonic() - seen > CHIEF_LIMIT_S:
            silent = f"was unresponsive for {CHIEF_LIMIT_S:g} s"
            raise TrainingError(f"{chief.name} ({chief.address}) {silent}")
    time.sleep(0.5)  # until the chief has the response
    progress.write("done", force=True)
    note(f"{cluster.task}: done, {chief.name} asked for the end", sys.stdout)


def _start_server(cluster: Cluster) -> Any:
    """Return TensorFlow's server of this task, started."""
    job, index = cluster.task_type, cluster.task_index
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=inter_op_threads())
    if job == "ps":
        # Parameters lie in the memory of the host: GPUs are for the workers.
        config.device_count["GPU"] = 0
    try:
        return tf.distribute.Server(cluster.addresses, job, index, "grpc", config)
    except tf.errors.OpError as error:
        reason = error.message.splitlines()[0]
        where = f"{cluster.task} at {cluster.addresses[job][index]}"
        raise TrainingError(f"cannot serve as {where}: {reason}; is its port taken?") from error


def inter_op_threads() -> int:
    """Return how many operations at a time a task of the gang must be able to run."""
    return max(LEAST_THREADS, os.cpu_count() or 1)


def _shutdown_queue() -> Any:
    """Return the queue of shutdowns on the device of the current scope; the same for all."""
    return tf.raw_ops.FIFOQueueV2(
        component_types=[tf.bool], shapes=[[]], capacity=1, container="", shared_name=_SHUTDOWN
    )


def _await_shutdown(cluster: Cluster, target: str, shutdown: threading.Event) -> None:
    """Set ``shutdown`` once the chief has put one into the queue of the server at ``target``."""
    device = f"/job:{cluster.task_type}/task:{cluster.task_index}"
    # Without the filter a session waits for all servers of the cluster.
    config = tf.compat.v1.ConfigProto(device_filters=[device])
    with tf.Graph().as_default(), tf.device(f"{device}/device:CPU:0"):
        taken = tf.raw_ops.QueueDequeueV2(handle=_shutdown_queue(), component_types=[tf.bool])
        with tf.compat.v1.Session(target, config=config) as session:
            session.run(taken)
    shutdown.set()


# ---------------------------------------------------------------------------------- the chief


class Watch:
    """The chief's watch over its servers, in threads of its own, until ``shutdown``.

    It ends the process with a line and exit code 1 if no worker takes part for long, when a
    parameter server is unresponsive or has ended, and, before ``follow``, also for a worker.
    To be made before TensorFlow connects to the cluster, and the graphs of the training before it
    begins: a thread that makes a *new* graph (tracing a function, and so saving a checkpoint) sends
    it to all workers and holds Python's global lock meanwhile. With a frozen worker that takes
    seconds once the worker is left out, and for ever before.
    """

    def __init__(self, servers: list[Peer]) -> None:
        self._found = {server.name: Liveness.LIVE for server in servers}
        self._servers = servers
        self._coordinator: Any = None
        self._over = threading.Event()
        options = os.environ.get(ENV_GRPC, "")
        if "min_reconnect_backoff_ms" not in options:  # which the user may have set
            bound = f"grpc.min_reconnect_backoff_ms={_CONNECT_MS}"
            os.environ[ENV_GRPC] = ",".join(filter(None, [options, bound]))
        # The end of a worker takes that lock with the functions of its resources, so that one that
        # freezes at that moment can block the chief.
        faulthandler.dump_traceback_later(STUCK_LIMIT_S, exit=True)
        for server in servers:
            threading.Thread(target=self._watch, args=(server,), daemon=True).start()
        threading.Thread(target=self._watch_workers, daemon=True).start()

    def follow(self, coordinator: Any) -> None:
        """Take note of the ClusterCoordinator: from now on workers may come and go."""
        self._coordinator = coordinator

    def shutdown(self) -> None:
        """End the watch and ask the servers to end; the last that the chief does with them.

        End the process with ``os._exit`` afterwards: TensorFlow's teardown waits for frozen ones.
        """
        self._over.set()
        faulthandler.cancel_dump_traceback_later()
        # A server that was left out, or does not take the request in time, ends by itself, as one
        # that lost its chief.
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
        """Probe a server again and again, and act upon what is found."""
        seen, known = time.monotonic(), Liveness.LIVE
        while not self._over.wait(_PERIOD_S if known is Liveness.LIVE else _PERIOD_S / 4):
            if known is Liveness.UNRESPONSIVE:
                # Each time, so that gRPC's new connections fail as they do for a killed process.
                server.cut()
            found = server.probe(_PATIENCE_S if known is Liveness.LIVE else _PERIOD_S)
            if found is Liveness.LIVE:
                seen = time.monotonic()
            elif found is Liveness.UNRESPONSIVE and time.monotonic() - seen < LIMIT_S:
                continue
            if found is not known:
                known = self._found[server.name] = found
                self._report(server, found)

    def _report(self, server: Peer, found: Liveness) -> None:
        """Write what has become of a server; end the process if it cannot continue without it."""
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
        """End the process if no worker takes part for long."""
        since = time.monotonic()
        while not self._over.wait(_PERIOD_S):
            faulthandler.dump_traceback_later(STUCK_LIMIT_S, exit=True)
            workers = {n: found for n, found in self._found.items() if n.startswith("worker-")}
            lost = self._lost_workers()
            if any(found is Liveness.LIVE and n not in lost for n, found in workers.items()):
                since = time.monotonic()
            elif time.monotonic() - since > WORKERS_LIMIT_S:
                states = ", ".join(f"{name} {found.value}" for name, found in workers.items())
                self._fail(f"no worker takes part for {WORKERS_LIMIT_S:g} s: {states}")

    def _lost_workers(self) -> set[str]:
        """Return the workers that ClusterCoordinator has lost and not taken back."""
        # It takes workers back only when all of them respond, and there is no public way to ask.
        # With a TensorFlow that hides it elsewhere, only the unresponsive ones count as lost.
        cluster = getattr(self._coordinator, "_cluster", None)
        return {
            f"worker-{worker.worker_index}"
            for worker in getattr(cluster, "workers", [])
            if getattr(worker, "_is_dead_with_error", None)
        }

    def _fail(self, line: str) -> None:
        """End the process with exit code 1, unless its program has come to its end."""
        if not self._over.is_set():
            _write_line(f"TrainingError: {line}")
            os._exit(1)


def _request_shutdown(server: Peer) -> None:
    """Ask a server to end; one that is lost meanwhile ends by itself."""
    job, _, index = server.name.rpartition("-")
    device = f"/job:{job}/task:{index}/device:CPU:0"
    with contextlib.suppress(tf.errors.OpError), tf.device(device):
        tf.raw_ops.QueueEnqueueV2(handle=_shutdown_queue(), components=[tf.constant(True)])


def _write_line(line: str) -> None:
    """Write a line to stderr at once, whatever the other threads hold."""
    os.write(sys.stderr.fileno(), f"{line}\n".encode())
