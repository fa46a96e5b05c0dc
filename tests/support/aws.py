"""A stand-in for AWS: moto's server, which can also refuse calls like the real service."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import boto3
import moto.backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

REGION = "eu-west-2"
_ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>
<RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"""
# Ansible replaces it in all of its output.
_SECRET = "not-checked-by-moto"
Call = Mapping[str, str]


@dataclass
class Aws:
    """A running stand-in.

    Attributes:
        calls: the parameters of each call since the last `reset`.
        refusals: functions that return the code of an error for a call, or None to let it pass.
        address: the public address that instances report, or an empty text for moto's own.
    """

    port: int = 0
    calls: list[Call] = field(default_factory=list)
    refusals: list[Callable[[Call], str | None]] = field(default_factory=list)
    address: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment with which boto3 uses the stand-in."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "unused",
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": REGION,
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def ec2(self) -> Any:
        """A client of boto3."""
        return boto3.client(
            "ec2",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name=REGION,
            aws_access_key_id="unused",
            aws_secret_access_key=_SECRET,
        )

    def refuse(self, action: str, code: str, **given: str) -> None:
        """Refuse all calls of an action, or those in which a parameter contains a text."""

        def refusal(call: Call) -> str | None:
            matches = call.get("Action") == action and all(
                text in value
                for name, text in given.items()
                for value in [" ".join(v for k, v in call.items() if k.endswith(name))]
            )
            return code if matches else None

        self.refusals.append(refusal)

    def actions(self, *prefixes: str) -> list[str]:
        """Return the actions called since the last `reset` that begin with a prefix."""
        return [
            call["Action"] for call in self.calls if call.get("Action", "").startswith(prefixes)
        ]

    def instances(self, *states: str) -> list[dict[str, Any]]:
        """Return the instances in these states, by default all that have not ended."""
        wanted = states or ("pending", "running", "stopping", "stopped")
        filters = [{"Name": "instance-state-name", "Values": list(wanted)}]
        reservations = self.ec2.describe_instances(Filters=filters)["Reservations"]
        return [instance for one in reservations for instance in one["Instances"]]

    def reset(self) -> None:
        """Remove everything from the account, and the refusals."""
        moto.backends.get_backend("ec2").reset()
        self.calls.clear()
        self.refusals.clear()
        self.address = ""

    def instance(self, cluster: str, task: str, index: int = 0) -> str:
        """Create an instance like one of the role, without the role, and return its ID."""
        tags = {
            "train-cluster": cluster,
            "train-task": task,
            "train-owner": "bob",
            "Name": f"{task}-{index}",
        }
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        made = self.ec2.run_instances(
            ImageId=self.ec2.describe_images(Owners=["self"])["Images"][0]["ImageId"],
            InstanceType="g4dn.xlarge",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": listed}],
        )
        return str(made["Instances"][0]["InstanceId"])

    def image(self, name: str) -> str:
        """Register an image and return its ID."""
        disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8, "SnapshotId": "snap-1"}}
        given = {"RootDeviceName": "/dev/sda1", "BlockDeviceMappings": [disk]}
        return str(self.ec2.register_image(Name=name, **given)["ImageId"])


@contextlib.contextmanager
def running_aws() -> Iterator[Aws]:
    """Provide a stand-in on a free port of this machine."""
    aws = Aws()
    application = DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        environ["wsgi.input"] = io.BytesIO(body)
        call = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        aws.calls.append(call)
        for refusal in aws.refusals:
            code = refusal(call)
            if code:
                start_response("400 Bad Request", [("Content-Type", "text/xml")])
                return [_ERROR.format(code=code, message="refused by the stand-in").encode()]
        if not aws.address or call.get("Action") != "DescribeInstances":
            return application(environ, start_response)
        parts, started = [], []
        parts += application(environ, lambda status, headers, *_: started.append((status, headers)))
        text = re.sub(rb"<ipAddress>[^<]*", b"<ipAddress>" + aws.address.encode(), b"".join(parts))
        (status, headers), *_ = started
        start_response(status, [(k, v) for k, v in headers if k.lower() != "content-length"])
        return [text]

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    aws.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield aws
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
