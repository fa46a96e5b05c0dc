"""A stand-in for the parts of Google Cloud that the role gcp_instances and its inventory call.

It answers as an HTTPS proxy, with certificates of a test authority, so that the modules of
``google.cloud`` run unchanged: `GoogleCloud.environment` has the proxy, the authority and the key
file of a service account, whose token URI is here as well. The answers have the shape of the real
service's. Operations take a moment. Quotas, zones without capacity and rejected keys are
settings.

An instance is a `Machine`: a Docker container with SSH (`Containers`), or nothing (`Nowhere`).
"""

from __future__ import annotations

import base64
import datetime
import http.server
import ipaddress
import json
import re
import secrets
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from tests.support.testbed import docker, wait_for_sshd, wait_for_systemd
from tests.support.testbed.bed import SYSTEMD_OPTIONS, Host
from tests.support.testbed.engine import build_image

PROJECT = "stand-in-project"
#: The address that the service for one's own address answers with.
OPERATOR = "203.0.113.9"
HOSTS = (
    *("compute.googleapis.com", "www.googleapis.com", "oauth2.googleapis.com"),
    "api.ipify.org",
)
ZONES = ("europe-west2-a", "europe-west2-b", "europe-west2-c")
MACHINE_TYPES = ("n1-standard-4", "n1-standard-8")
ACCELERATORS = ("nvidia-tesla-t4",)
IMAGES = "projects/deeplearning-platform-release/global/images/family/"
FAMILIES = (f"{IMAGES}common-cu129-ubuntu-2204-nvidia-580",)
ROOT = "https://www.googleapis.com/compute/v1"
OPERATION_S = 0.3
LABEL = "train.gcp"
Answer = tuple[int, Any]


class ApiError(Exception):
    """A request is rejected."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass
class Machine:
    """What an instance runs on: its addresses and the host keys that its guest agent publishes."""

    private: str
    public: str
    keys: dict[str, str]


class Machines(Protocol):
    """Starts and ends machines by the names of their instances."""

    def start(self, name: str, metadata: dict[str, str]) -> Machine:
        """Start a new machine, or one that was stopped."""

    def stop(self, name: str) -> None:
        """Stop a machine."""

    def remove(self, name: str) -> None:
        """Remove a machine with its disk."""


class Nowhere:
    """Machines that do not exist."""

    def __init__(self) -> None:
        self._numbers = iter(range(2, 250))

    def start(self, name: str, metadata: dict[str, str]) -> Machine:
        number = next(self._numbers)
        kind = b"ssh-ed25519"
        blob = len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + bytes(32)
        key = base64.b64encode(blob).decode()
        return Machine(f"10.154.0.{number}", f"198.51.100.{number}", {"ssh-ed25519": key})

    def stop(self, name: str) -> None:
        pass

    def remove(self, name: str) -> None:
        pass


class Containers:
    """Machines that are Docker containers with systemd, in a public and a private network.

    Args:
        token: in the names of containers and networks, and their label.
        mounts: ``HOST:CONTAINER[:ro]`` for all of them.
    """

    def __init__(self, token: str, mounts: Sequence[str] = ()) -> None:
        self._token, self._mounts = token, mounts
        self._image = build_image(systemd=True)
        self._networks = {name: f"{token}-{name}" for name in ("public", "private")}
        for network in self._networks.values():
            docker("network", "create", "--label", f"{LABEL}={token}", network)

    def start(self, name: str, metadata: dict[str, str]) -> Machine:
        container = f"{self._token}-{name}"
        known = docker("ps", "--all", "--quiet", "--filter", f"name=^{container}$").stdout.strip()
        if known:
            docker("start", container)
        else:
            docker(
                *("run", "--detach", "--label", f"{LABEL}={self._token}", "--name", container),
                *("--hostname", name, "--network", self._networks["public"], *SYSTEMD_OPTIONS),
                *(word for mount in self._mounts for word in ("--volume", mount)),
                self._image,
            )
            docker("network", "connect", self._networks["private"], container)
        form = "{{json .NetworkSettings.Networks}}"
        networks = json.loads(docker("inspect", "--format", form, container).stdout)
        public, private = (networks[net]["IPAddress"] for net in self._networks.values())
        host = Host(name, public, container)
        wait_for_systemd(host)
        wait_for_sshd(host)
        self._act_as_guest_agent(container, metadata)
        key = self.exec(name, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()
        return Machine(private, public, {key[0]: key[1]})

    def _act_as_guest_agent(self, container: str, metadata: dict[str, str]) -> None:
        """Authorize the key in the metadata, and run the startup script."""
        user, _, key = metadata["ssh-keys"].partition(":")
        made = f"/home/{user}/train"
        authorize = (
            f"umask 077; cat > /home/{user}/.ssh/authorized_keys; "
            f"chown {user}: /home/{user}/.ssh/authorized_keys; "
            f"if [ -d {made} ]; then chown {user}: {made} {made}/*; fi"
        )
        run = ("exec", "--interactive", container, "sh", "-c")
        docker(*run, authorize, stdin=key + "\n")
        docker(*run, "sh -s", stdin=metadata.get("startup-script", ""))

    def exec(self, name: str, command: str) -> str:
        """Run a command of the shell as root in a machine, and return its output."""
        return docker("exec", f"{self._token}-{name}", "sh", "-c", command).stdout

    def stop(self, name: str) -> None:
        docker("stop", "--time", "1", f"{self._token}-{name}")

    def remove(self, name: str) -> None:
        docker("rm", "--force", "--volumes", f"{self._token}-{name}")

    def left(self) -> list[str]:
        """Return the names of the containers that exist."""
        mine = ("--filter", f"label={LABEL}={self._token}")
        return docker("ps", "--all", "--format", "{{.Names}}", *mine).stdout.split()

    def close(self) -> None:
        """Remove all that is left."""
        if left := self.left():
            docker("rm", "--force", "--volumes", *left)
        docker("network", "rm", *self._networks.values())


@dataclass
class GoogleCloud:
    """The state of the stand-in.

    Attributes:
        folder: of its certificates and the key file.
        full_zones: zones without capacity.
        over_quota: whether the next instance exceeds the quota.
        before_insert: called with the name of an instance before it is created.
        requests: the methods and paths of all requests.
    """

    folder: Path
    machines: Machines
    full_zones: set[str] = field(default_factory=set)
    over_quota: bool = False
    key_is_known: bool = True
    may_read: bool = True
    before_insert: Callable[[str], None] = lambda name: None
    instances: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    firewalls: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self._operations: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, dict[str, str]] = {}
        self._tokens: set[str] = set()
        self._lock = threading.RLock()
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.account = self.folder / "account.json"
        self.authority = self.folder / "authority.pem"
        self.certificate = self.folder / "server.pem"
        self._write_account()
        self._write_certificates()

    def environment(self) -> dict[str, str]:
        """Return the variables with which programs call the stand-in instead of Google."""
        return {
            "HTTPS_PROXY": f"http://127.0.0.1:{self.port}",
            "REQUESTS_CA_BUNDLE": str(self.authority),
            "SSL_CERT_FILE": str(self.authority),
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.account),
            "GCP_PROJECT": PROJECT,
        }

    def names(self) -> list[str]:
        """Return the names of all instances."""
        return sorted(name for _, name in self.instances)

    def _write_account(self) -> None:
        pem = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        account = {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "0" * 40,
            "private_key": pem.decode(),
            "client_email": f"train@{PROJECT}.iam.gserviceaccount.com",
            "client_id": "1" * 21,
            "token_uri": "https://oauth2.googleapis.com/token",
        }
        self.account.write_text(json.dumps(account))

    def _write_certificates(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        authority_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

        def builder(name: str) -> x509.CertificateBuilder:
            return (
                x509.CertificateBuilder()
                .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
                .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stand-in")]))
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(hours=1))
                .not_valid_after(now + datetime.timedelta(days=1))
            )

        authority = (
            builder("stand-in")
            .public_key(authority_key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS])
        certificate = (
            builder(HOSTS[0])
            .public_key(key.public_key())
            .add_extension(names, critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        self.authority.write_bytes(authority.public_bytes(pem))
        self.certificate.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + certificate.public_bytes(pem)
        )

    # ---- requests

    def answer(
        self, method: str, url: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """Return status and body of the answer to a request."""
        host, path = urllib.parse.urlsplit(url).netloc, urllib.parse.urlsplit(url).path
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
        self.requests.append(f"{method} {path}")
        if host == "api.ipify.org":
            return 200, json.dumps({"ip": OPERATOR}).encode()
        if host == "oauth2.googleapis.com":
            status, value = self._token(body)
            return status, json.dumps(value).encode()
        try:
            if headers.get("authorization", "").removeprefix("Bearer ") not in self._tokens:
                raise ApiError(401, "authError", "Invalid Credentials")
            if not self.may_read:
                raise ApiError(403, "forbidden", "Required 'compute.instances.list' permission")
            parts = path.removeprefix("/compute/v1/projects/").split("/")
            if parts[0] != PROJECT:
                raise missing("projects", parts[0])
            with self._lock:
                value = self._route(method, parts[1:], query, json.loads(body or b"{}") or {})
            return 200, json.dumps(value).encode()
        except ApiError as error:
            shown = {"message": error.message, "domain": "global", "reason": error.reason}
            value = {"error": {"code": error.status, "message": error.message, "errors": [shown]}}
            return error.status, json.dumps(value).encode()

    def _token(self, body: bytes) -> Answer:
        """Exchange a signed assertion for a token, as OAuth does."""
        assertion = dict(urllib.parse.parse_qsl(body.decode()))["assertion"]
        signed, _, signature = assertion.rpartition(".")
        try:
            if not self.key_is_known:
                raise InvalidSignature
            self._key.public_key().verify(
                base64.urlsafe_b64decode(signature + "=="),
                signed.encode(),
                padding.PKCS1v15(),
                hashes.SHA256(),
            )
        except InvalidSignature:
            text = "Invalid JWT Signature."
            return 400, {"error": "invalid_grant", "error_description": text}
        token = secrets.token_hex(16)
        self._tokens.add(token)
        return 200, {"access_token": token, "expires_in": 3599, "token_type": "Bearer"}

    def _route(
        self, method: str, parts: list[str], query: dict[str, str], body: dict[str, Any]
    ) -> Any:
        match [method, *parts]:
            case ["GET", "aggregated", "instances"]:
                return self._aggregated(query.get("filter", ""))
            case ["GET", "zones", _, "operations", name] | ["GET", "global", "operations", name]:
                return self._operation(name)
            case ["GET", "global", "firewalls"]:
                rules = list(self.firewalls.values())
                return {"kind": "compute#firewallList", "items": rules}
            case ["POST", "global", "firewalls"]:
                return self._save_firewall(body)
            case [_, "global", "firewalls", name] if name not in self.firewalls:
                raise missing("global/firewalls", name)
            case ["GET", "global", "firewalls", name]:
                return self.firewalls[name]
            case ["PATCH", "global", "firewalls", name]:
                return self._save_firewall({**self.firewalls[name], **body})
            case ["DELETE", "global", "firewalls", name]:
                return self._begin(
                    self.firewalls[name]["selfLink"], lambda: self.firewalls.pop(name)
                )
            case [_, "zones", zone, *_] if zone not in ZONES:
                raise missing("zones", zone)
            case ["POST", "zones", zone, "instances"]:
                return self._insert(zone, body)
            case [_, "zones", zone, "instances", name, *_] if (zone, name) not in self.instances:
                raise missing(f"zones/{zone}/instances", name)
            case ["GET", "zones", zone, "instances", name]:
                return self.instances[zone, name]
            case ["DELETE", "zones", zone, "instances", name]:
                return self._delete(zone, name)
            case ["POST", "zones", zone, "instances", name, "start"]:
                return self._power(zone, name, "RUNNING")
            case ["POST", "zones", zone, "instances", name, "stop"]:
                return self._power(zone, name, "TERMINATED")
            case ["GET", "zones", zone, "instances", name, "getGuestAttributes"]:
                return self._guest_attributes(name, query)
        raise ApiError(501, "notImplemented", f"the stand-in has no {method} {'/'.join(parts)}")

    def _aggregated(self, wanted: str) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for zone in ZONES:
            found = [
                instance
                for (place, _), instance in sorted(self.instances.items())
                if place == zone and matches(instance, wanted)
            ]
            warning = {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results"}
            items[f"zones/{zone}"] = {"instances": found} if found else {"warning": warning}
        return {"kind": "compute#instanceAggregatedList", "items": items}

    # ---- operations

    def _begin(
        self, target: str, do: Callable[[], object], errors: Sequence[dict[str, str]] = ()
    ) -> dict[str, Any]:
        """Begin an operation that takes a moment, and return its description."""
        name = f"operation-{secrets.token_hex(8)}"
        operation: dict[str, Any] = {
            "kind": "compute#operation",
            "name": name,
            "status": "RUNNING",
            "targetLink": target,
            "progress": 0,
        }
        self._operations[name] = operation

        def work() -> None:
            time.sleep(OPERATION_S)
            try:
                if errors:
                    operation["error"] = {"errors": list(errors)}
                else:
                    do()
            finally:
                operation["status"] = "DONE"

        threading.Thread(target=work, daemon=True).start()
        return dict(operation)

    def _operation(self, name: str) -> dict[str, Any]:
        if name not in self._operations:
            raise missing("operations", name)
        return dict(self._operations[name])

    # ---- instances

    def _insert(self, zone: str, body: dict[str, Any]) -> dict[str, Any]:
        name = body["name"]
        self._lock.release()  # other requests are answered meanwhile
        try:
            self.before_insert(name)
        finally:
            self._lock.acquire()
        if (zone, name) in self.instances:
            raise ApiError(409, "alreadyExists", f"The resource '{name}' already exists")
        check(body, zone)
        link = f"{ROOT}/projects/{PROJECT}/zones/{zone}"
        target = f"{link}/instances/{name}"
        if self.over_quota:
            text = "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region europe-west2."
            errors = [{"code": "QUOTA_EXCEEDED", "message": text}]
            return self._begin(target, bool, errors)
        if zone in self.full_zones:
            text = (
                f"The zone 'projects/{PROJECT}/zones/{zone}' does not have enough resources "
                "available to fulfill the request.  Try a different zone, or try again later."
            )
            errors = [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": text}]
            return self._begin(target, bool, errors)
        metadata = {item["key"]: item["value"] for item in body["metadata"]["items"]}

        def create() -> None:
            machine = self.machines.start(name, metadata)
            self._keys[name] = machine.keys
            interface = {
                "kind": "compute#networkInterface",
                "network": f"{ROOT}/projects/{PROJECT}/global/networks/default",
                "subnetwork": f"{ROOT}/projects/{PROJECT}/regions/{zone[:-2]}/subnetworks/default",
                "name": "nic0",
                "networkIP": machine.private,
                "accessConfigs": [
                    {
                        "kind": "compute#accessConfig",
                        "type": "ONE_TO_ONE_NAT",
                        "name": "External NAT",
                        "natIP": machine.public,
                    }
                ],
            }
            disk = {"boot": True, "autoDelete": True, "source": f"{link}/disks/{name}"}
            self.instances[zone, name] = {
                "kind": "compute#instance",
                "id": str(secrets.randbelow(10**18) + 10**18),
                "creationTimestamp": datetime.datetime.now().astimezone().isoformat("T"),
                "name": name,
                "zone": link,
                "selfLink": target,
                "status": "RUNNING",
                "machineType": body["machineType"],
                "guestAccelerators": [
                    {**gpu, "acceleratorType": f"{ROOT}/{gpu['acceleratorType']}"}
                    for gpu in body.get("guestAccelerators", [])
                ],
                "labels": body["labels"],
                "labelFingerprint": "42WmSpB8rSM=",
                "metadata": {"kind": "compute#metadata", "fingerprint": "x", **body["metadata"]},
                "tags": {"fingerprint": "x", **body["tags"]},
                "scheduling": body["scheduling"],
                "deletionProtection": False,
                "shieldedInstanceConfig": {
                    "enableSecureBoot": False,
                    "enableVtpm": True,
                    "enableIntegrityMonitoring": True,
                },
                "networkInterfaces": [interface],
                "disks": [disk],
            }

        return self._begin(target, create)

    def _delete(self, zone: str, name: str) -> dict[str, Any]:
        def delete() -> None:
            self.machines.remove(name)
            del self.instances[zone, name]

        return self._begin(self.instances[zone, name]["selfLink"], delete)

    def _power(self, zone: str, name: str, status: str) -> dict[str, Any]:
        instance = self.instances[zone, name]

        def change() -> None:
            interface = instance["networkInterfaces"][0]
            if status == "RUNNING":
                metadata = {i["key"]: i["value"] for i in instance["metadata"]["items"]}
                machine = self.machines.start(name, metadata)
                interface["networkIP"] = machine.private
                interface["accessConfigs"][0]["natIP"] = machine.public
            else:
                self.machines.stop(name)
                del interface["accessConfigs"][0]["natIP"]
            instance["status"] = status

        return self._begin(instance["selfLink"], change)

    def _guest_attributes(self, name: str, query: dict[str, str]) -> dict[str, Any]:
        keys = self._keys.get(name)
        if query.get("queryPath") != "hostkeys/" or not keys:
            raise ApiError(404, "notFound", "The resource 'hostkeys/' of type 'Guest Attribute'")
        items = [
            {"namespace": "hostkeys", "key": kind, "value": value} for kind, value in keys.items()
        ]
        return {
            "kind": "compute#guestAttributes",
            "queryPath": "hostkeys/",
            "queryValue": {"items": items},
        }

    # ---- rules

    def _save_firewall(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body["name"]
        for network in body.get("sourceRanges", []):
            ipaddress.ip_network(network)
        link = f"{ROOT}/projects/{PROJECT}/global/firewalls/{name}"
        rule = {**body, "kind": "compute#firewall", "selfLink": link, "id": "1"}
        return self._begin(link, lambda: self.firewalls.update({name: rule}))


def missing(kind: str, name: str) -> ApiError:
    where = kind if kind == "projects" else f"projects/{PROJECT}/{kind}"
    return ApiError(404, "notFound", f"The resource '{where}/{name}' was not found")


def check(body: dict[str, Any], zone: str) -> None:
    """Raise ApiError for fields that the real service rejects."""

    def invalid(name: str, value: str, text: str) -> ApiError:
        return ApiError(400, "invalid", f"Invalid value for field '{name}': '{value}'. {text}")

    absent = "The referenced resource does not exist."
    if body["machineType"].rpartition("/")[2] not in MACHINE_TYPES:
        raise invalid("resource.machineType", body["machineType"], absent)
    for number, gpu in enumerate(body.get("guestAccelerators", [])):
        if gpu["acceleratorType"].rpartition("/")[2] not in ACCELERATORS:
            name = f"resource.guestAccelerators[{number}].acceleratorType"
            raise invalid(name, gpu["acceleratorType"], absent)
    image = body["disks"][0]["initializeParams"]["sourceImage"]
    if image not in FAMILIES:
        raise invalid("resource.disks[0].initializeParams.sourceImage", image, absent)
    for key, value in body["labels"].items():
        if not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
            raise invalid(f"resource.labels[{key}]", value, "Bad label.")
    if body["scheduling"]["onHostMaintenance"] != "TERMINATE" and body.get("guestAccelerators"):
        raise invalid("scheduling.onHostMaintenance", "MIGRATE", "Not with accelerators.")


def matches(resource: dict[str, Any], wanted: str) -> bool:
    """Return whether a resource matches a filter of the few forms that are used."""
    if " OR " in wanted:
        return any(matches(resource, part) for part in wanted.split(" OR "))
    for name, operator, value in re.findall(r"([\w.]+) ?([:=]) ?([\w*-]+)", wanted):
        field_value: Any = resource
        for part in name.split("."):
            field_value = field_value.get(part, {})
        text = field_value if isinstance(field_value, str) else ""
        if operator == ":":  # of which only `:*` is used
            if not text:
                return False
        elif text != value:
            return False
    return True


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cloud: GoogleCloud
    host = ""

    def do_CONNECT(self) -> None:
        self.host = self.path.partition(":")[0]
        if self.host not in HOSTS:
            self.send_error(502, f"the stand-in is not {self.host}")
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cloud.certificate)
        self.connection = context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        status, text = self.cloud.answer(
            self.command, f"https://{self.host}{self.path}", headers, body
        )
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_DELETE = _reply  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def google_cloud(folder: Path, machines: Machines) -> Iterator[GoogleCloud]:
    """Provide a running stand-in; its machines are the caller's."""
    cloud = GoogleCloud(folder, machines)
    handler = type("Handler", (_Handler,), {"cloud": cloud})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    cloud.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()
