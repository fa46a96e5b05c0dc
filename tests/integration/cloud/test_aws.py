"""``playbooks/aws.yml`` and ``inventory/aws`` against moto's server.

The real service was never used. Tests with the mark ``soak`` run in ``make soak`` only, because
each module of amazon.aws takes a second of CPU time to load.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.lab import REPOSITORY, environment, playbook_command, run
from tests.support.set_up_role import Play
from tests.support.testbed import running_testbed

pytest.importorskip("moto", reason="moto[server] is not installed")
from tests.support.aws import REGION, Aws, running_aws

NAME = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20260101"
QUICK = str(REPOSITORY / "tests/support/quick_sleep")


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with running_aws() as aws:
        yield aws


@pytest.fixture
def aws(server: Aws) -> Aws:
    server.reset()
    server.image(NAME)
    return server


class Cloud:
    """Runs the playbook and the inventory like a user, with a separate home."""

    def __init__(self, aws: Aws, folder: Path, sockets: str) -> None:
        self.aws, self.folder, self.keys = aws, folder, folder / "home/.ssh/train-aws"
        (folder / "home").mkdir()
        key = folder / "operator"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        self.key = key
        self.variables: dict[str, Any] = {
            "aws_instances_image_owner": "self",
            "aws_instances_owner": "ada",
            "aws_instances_ssh_public_key": f"{key}.pub",
            "aws_instances_ssh_sources": ["192.0.2.7"],
            "aws_instances_replace_host_keys": False,
        }
        self.environment = {
            **environment(),
            **aws.environment,
            "HOME": str(folder / "home"),
            "PYTHONPATH": QUICK,
            # Below the home, the path of a socket would be too long.
            "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets,
        }

    def command(self, state: str, *options: str, **variables: Any) -> list[str]:
        given = {**self.variables, "state": state, **variables}
        return playbook_command("aws.yml", REPOSITORY / "inventory/local", given, *options)

    def run(self, state: str, *options: str, **variables: Any) -> Play:
        command = self.command(state, *options, **variables)
        self.aws.calls.clear()
        done = run(*command, env=self.environment, stderr=subprocess.STDOUT, timeout=600)
        (self.folder / "output").write_text(done.stdout)
        return Play(done.returncode, done.stdout)

    def refused(self, state: str, **variables: Any) -> str:
        """Run a playbook that fails with one error, and return its output."""
        done = self.run(state, **variables)
        assert done.code == 2, done.output
        assert done.output.count("\nfatal: ") == 1, done.output
        return done.shown

    @property
    def groups(self) -> list[str]:
        found = self.aws.ec2.describe_security_groups()["SecurityGroups"]
        return [group["GroupName"] for group in found if group["GroupName"] != "default"]

    def assert_nothing_left(self) -> None:
        assert self.aws.instances("pending", "running", "stopping", "stopped") == []
        assert self.groups == []
        assert self.aws.ec2.describe_key_pairs()["KeyPairs"] == []
        assert self.aws.ec2.describe_launch_templates()["LaunchTemplates"] == []
        volumes = self.aws.ec2.describe_volumes()["Volumes"]
        assert [v for v in volumes if v["State"] != "deleting"] == []
        # ssh-keygen keeps the public keys that it has removed in files that end with .old.
        kept = [path for path in self.keys.rglob("*") if path.suffix != ".old"]
        assert [path for path in kept if path.read_text()] == []


@pytest.fixture
def cloud(aws: Aws, tmp_path: Path) -> Iterator[Cloud]:
    with tempfile.TemporaryDirectory(prefix="aws-") as sockets:
        yield Cloud(aws, tmp_path, sockets)


def tags_of(item: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags", [])}


def user_data(aws: Aws, instance: str) -> tuple[str, Any]:
    given = aws.ec2.describe_instance_attribute(InstanceId=instance, Attribute="userData")
    text = base64.b64decode(given["UserData"]["Value"]).decode()
    return text, yaml.safe_load(text)


def test_a_cluster_from_its_plan_to_its_end(cloud: Cloud) -> None:
    aws = cloud.aws
    given = {"count": 1, "aws_instances_others": {"spare": 1}, "cloud_max_hours": 5}

    planned = cloud.run("present", "--check", **given).checked()
    assert "Would create: worker-0, spare-0" in planned.shown
    assert (
        "To be paid for: 2 GPUs and 2 g4dn.xlarge for up to 5 hours: 2 x 5 = 10 GPU hours, "
        "2 x 5 = 10 instance hours. Disks are charged until the cluster is absent." in planned.shown
    )
    assert planned.changed > 0
    assert (aws.instances(), cloud.groups, cloud.keys.exists()) == ([], [], False)
    assert aws.actions("Create", "Run", "Authorize") == []

    made = cloud.run("present", **given).checked()
    (key,) = cloud.key.with_suffix(".pub").read_text().splitlines()
    private_keys = set()
    for instance in aws.instances("running"):
        tags = tags_of(instance)
        assert tags["Name"] == tags["train-task"] + "-0"
        assert (tags["train-cluster"], tags["train-owner"]) == ("train", "ada")
        assert tags["train-max-hours"] == "5"
        assert instance["InstanceType"] == "g4dn.xlarge"
        (disk,) = instance["BlockDeviceMappings"]
        assert disk["Ebs"]["DeleteOnTermination"]
        (volume,) = aws.ec2.describe_volumes(VolumeIds=[disk["Ebs"]["VolumeId"]])["Volumes"]
        assert (volume["Size"], volume["VolumeType"]) == (200, "gp3")
        assert tags_of(volume)["train-cluster"] == "train"
        text, data = user_data(aws, instance["InstanceId"])
        assert text.startswith("#cloud-config\n")
        assert data["ssh_authorized_keys"] == [key]
        units = {Path(file["path"]).name: file["content"] for file in data["write_files"]}
        assert "OnBootSec=5h\n" in units["train-max-hours.timer"]
        assert "poweroff" in units["train-max-hours.service"]
        kept = cloud.keys / f"{REGION}-train-{tags['Name']}"
        assert data["ssh_keys"]["ed25519_private"] == kept.read_text()
        assert kept.stat().st_mode & 0o777 == 0o600
        private_keys.add(kept.read_text())
        known = (cloud.keys / "known_hosts.first").read_text()
        public = " ".join(data["ssh_keys"]["ed25519_public"].split()[:2])
        assert f"{instance['InstanceId']} {public}" in known
        assert data["ssh_keys"]["ed25519_private"].splitlines()[1] not in made.output
    assert len(private_keys) == 2
    assert cloud.keys.stat().st_mode & 0o777 == 0o700
    (runs,) = {
        (call["InstanceInitiatedShutdownBehavior"], call["MetadataOptions.HttpTokens"])
        for call in aws.calls
        if call.get("Action") == "RunInstances"
    }
    assert runs == ("stop", "required")
    (group,) = aws.ec2.describe_security_groups(GroupNames=["train-train"])["SecurityGroups"]
    rules = {
        (rule["FromPort"], rule["ToPort"]): (
            [source["CidrIp"] for source in rule["IpRanges"]],
            [source["GroupId"] for source in rule["UserIdGroupPairs"]],
        )
        for rule in group["IpPermissions"]
    }
    assert rules == {
        (22, 22): (["192.0.2.7/32"], []),
        (1024, 65535): ([], [group["GroupId"]]),
    }

    # The hours of existing instances are those with which they were created.
    again = cloud.run("present", **{**given, "cloud_max_hours": 9}).checked()
    assert again.changed == 0
    assert again.shown.count("powers off 5 hours after its start") == 2
    assert "9 hours" not in again.shown
    assert "To be paid for" not in again.shown
    assert aws.actions("Create", "Run", "Delete", "Authorize", "Revoke", "Modify") == []

    cloud.run("absent").checked()
    cloud.assert_nothing_left()


@pytest.mark.soak
def test_clusters_are_listed_and_one_of_them_stopped_and_started(cloud: Cloud) -> None:
    aws = cloud.aws
    worker, other = aws.instance("train", "worker"), aws.instance("forgotten", "worker")
    tags = [{"Key": "train-cluster", "Value": "gone"}]
    leftover = {"ResourceType": "security-group", "Tags": tags}
    aws.ec2.create_security_group(
        GroupName="train-gone", Description="left", TagSpecifications=[leftover]
    )
    shown = cloud.run("list").checked().shown
    for cluster, instance in (("train", worker), ("forgotten", other)):
        assert f"cluster {cluster}, worker-0 ({instance}), {REGION}" in shown
    assert shown.count("g4dn.xlarge, running, created 0.0 hours ago, owner bob") == 2
    assert "Security groups of clusters without instances: train-gone. Delete them with" in shown
    elsewhere = cloud.run("list", region="eu-west-3").checked().shown
    assert "No instance in eu-west-3 has the tag train-cluster" in elsewhere

    planned = cloud.run("stopped", "--check").checked()
    assert "Would stop: worker-0. Their disks still cost money" in planned.shown
    assert planned.changed == 1
    stopped = cloud.run("stopped").checked()
    assert "Stopped: worker-0. Their disks still cost money" in stopped.shown
    assert [one["InstanceId"] for one in aws.instances("stopped")] == [worker]
    assert "are stopped already" in cloud.run("stopped").checked().shown

    shown = cloud.refused("present", count=1, aws_instances_type="g5.xlarge", aws_instances_gpus=1)
    assert "The cluster train has worker-0 (g4dn.xlarge) already" in shown
    assert aws.actions("Create", "Run", "Start", "Authorize") == []

    # The instance was not created from this machine.
    shown = cloud.refused("present", count=1)
    assert "The host keys of worker-0 are unknown on this machine" in shown
    assert len(aws.instances("running")) == 1

    # It was, and its own host key is known.
    cloud.keys.mkdir(0o700, parents=True)
    (cloud.keys / "known_hosts").write_text(f"{worker} ssh-ed25519 AAAA\n")
    started = cloud.run("present", count=1).checked()
    assert "Creating: nothing" in started.shown
    assert "Starting: worker-0" in started.shown
    assert "Without a known limit, and not counted: worker-0" in started.shown
    assert len(aws.instances("running")) == 2

    assert "Would delete: worker-0" in cloud.run("absent", "--check", count=0).checked().shown
    assert len(aws.instances()) == 2
    assert "Deleted: worker-0, train-train." in cloud.run("absent").checked().shown
    assert [one["InstanceId"] for one in aws.instances()] == [other]
    assert cloud.run("absent").checked().changed == 0


def test_the_inventory_groups_the_running_instances(cloud: Cloud) -> None:
    aws = cloud.aws
    aws.instance("train", "chief")
    aws.instance("train", "worker")
    aws.instance("train", "worker", 1)
    aws.instance("train", "spare")
    aws.instance("other", "evaluator")
    aws.ec2.stop_instances(InstanceIds=[aws.instance("train", "ps")])
    words = ["-i", str(REPOSITORY / "inventory/aws"), "--list"]
    listed = run("ansible-inventory", *words, env=cloud.environment)
    # The plugin itself causes a deprecation warning.
    assert (listed.returncode, "parse" in listed.stderr) == (0, False), listed.stderr
    inventory = json.loads(
        listed.stdout, object_hook=lambda value: value.get("__ansible_unsafe", value)
    )
    names = {"chief", "worker", "ps", "evaluator", "spare"} & set(inventory)
    assert {name: sorted(inventory[name]["hosts"]) for name in names} == {
        "chief": ["chief-0"],
        "worker": ["worker-0", "worker-1"],
        "spare": ["spare-0"],
    }
    for instance in aws.instances("running"):
        tags = tags_of(instance)
        if tags["train-cluster"] == "train":
            variables = inventory["_meta"]["hostvars"][tags["Name"]]
            assert variables["ansible_host"] == instance["PublicIpAddress"]
            assert variables["train_job_address"] == instance["PrivateIpAddress"]
            assert variables["aws_instance_id"] == instance["InstanceId"]
            assert variables["train_job_port"] == 12345
            options = variables["ansible_ssh_common_args"].split()
            assert {"StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null"} <= set(options)


@pytest.mark.soak
def test_a_run_that_is_interrupted_after_the_first_instance(cloud: Cloud) -> None:
    process = subprocess.Popen(
        cloud.command("present"),
        cwd=REPOSITORY,
        env=cloud.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not cloud.aws.instances() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    first = [instance["InstanceId"] for instance in cloud.aws.instances()]
    assert len(first) == 1

    cloud.run("present").checked()
    ids = [instance["InstanceId"] for instance in cloud.aws.instances("running")]
    assert len(ids) == 2
    assert first[0] in ids
    known = (cloud.keys / "known_hosts.first").read_text()
    assert all(known.count(f"{instance} ") == 1 for instance in ids)
    _, data = user_data(cloud.aws, first[0])
    assert data["ssh_keys"]["ed25519_public"].split()[1] in known
    cloud.run("absent").checked()
    cloud.assert_nothing_left()


@pytest.mark.soak
def test_zones_without_capacity(cloud: Cloud) -> None:
    subnets = cloud.aws.ec2.describe_subnets()["Subnets"]
    subnet = {one["AvailabilityZone"]: one["SubnetId"] for one in subnets}
    code = "InsufficientInstanceCapacity"
    cloud.aws.refuse("RunInstances", code, SubnetId=subnet[f"{REGION}a"])
    zones = f"{REGION}a,{REGION}b"
    made = cloud.run("present", zones=zones).checked()
    assert f"{REGION}a cannot create worker-0 ({code}). The next zone to try is {REGION}b." in (
        made.shown
    )
    used = {one["Placement"]["AvailabilityZone"] for one in cloud.aws.instances("running")}
    assert used == {f"{REGION}b"}
    assert made.shown.count("The next zone to try") == 1  # not again for worker-1

    cloud.aws.refuse("RunInstances", code, SubnetId=subnet[f"{REGION}b"])
    shown = cloud.refused("present", count=3, zones=zones)
    assert f"No zone is left to try of {REGION}a, {REGION}b" in shown
    assert f"Try -e zones={REGION}c, or another aws_instances_type or aws_instances_region" in shown
    assert "deletes the security group train-train and worker-0, worker-1" in shown


@pytest.mark.soak
def test_quotas_and_spot_instances(cloud: Cloud) -> None:
    cloud.aws.refuse("RunInstances", "VcpuLimitExceeded", InstanceType="g4dn.xlarge")
    shown = cloud.refused("present", aws_instances_spot=True)
    assert f"Request a higher quota in the console (Service Quotas, EC2, {REGION})" in shown
    assert cloud.aws.ec2.describe_launch_templates()["LaunchTemplates"] == []

    cloud.aws.refusals.clear()
    cloud.run("present", count=1, aws_instances_spot=True).checked()
    (call,) = (call for call in cloud.aws.calls if call.get("Action") == "RunInstances")
    assert call["LaunchTemplate.LaunchTemplateName"] == "train-train"
    assert call["InstanceInitiatedShutdownBehavior"] == "terminate"
    (template,) = (c for c in cloud.aws.calls if c.get("Action") == "CreateLaunchTemplate")
    assert template["LaunchTemplateData.InstanceMarketOptions.MarketType"] == "spot"
    assert cloud.aws.ec2.describe_launch_templates()["LaunchTemplates"] == []


CASES: list[tuple[str, dict[str, Any], tuple[str, str, str] | None]] = [
    ("Set AWS_PROFILE, or AWS_ACCESS_KEY_ID", {}, ("DescribeInstances", "AuthFailure", "")),
    (
        "Ask the administrator of the account for this permission",
        {},
        ("CreateSecurityGroup", "UnauthorizedOperation", ""),
    ),
    ("Set aws_instances_image to one of eu-west-2", {"aws_instances_image": "ami-0123abcd"}, None),
    (
        "Set aws_instances_type to a type that this region offers",
        {"aws_instances_type": "g9.huge", "aws_instances_gpus": 1},
        ("RunInstances", "InvalidParameterValue", "g9.huge"),
    ),
    ("No image in eu-west-2 has the name", {"aws_instances_image_name": "none"}, None),
    ("Choose from these", {"zones": "us-east-1a"}, None),
    ("not the whole internet", {"aws_instances_ssh_sources": ["0.0.0.0/0"]}, None),
    ("The number of GPUs of a p3.2xlarge is unknown", {"aws_instances_type": "p3.2xlarge"}, None),
]


@pytest.mark.soak
@pytest.mark.parametrize(("words", "given", "refusal"), CASES, ids=lambda value: str(value)[:40])
def test_an_error_has_one_message_with_its_remedy(
    cloud: Cloud, words: str, given: dict[str, Any], refusal: tuple[str, str, str] | None
) -> None:
    if refusal:
        action, code, kind = refusal
        cloud.aws.refuse(action, code, **({"InstanceType": kind} if kind else {}))
    assert words in cloud.refused("present", **given)
    cloud.aws.refusals.clear()
    assert cloud.aws.instances() == []


@pytest.mark.soak
def test_a_missing_package_is_one_message_with_the_command(cloud: Cloud) -> None:
    (cloud.folder / "boto3.py").write_text("raise ImportError")
    cloud.environment["PYTHONPATH"] = f"{cloud.folder}:{QUICK}"
    shown = cloud.refused("list")
    assert "The modules for AWS need boto3" in shown
    assert "-m pip install boto3" in shown
    assert cloud.aws.calls == []


@pytest.mark.soak
@pytest.mark.docker
def test_the_host_key_is_replaced_over_a_verified_login(cloud: Cloud, tmp_path: Path) -> None:
    with running_testbed(1, tmp_path / "bed", systemd=True) as bed:
        host = bed.hosts[0]

        def shell(command: str, stdin: str = "") -> str:
            return bed.exec(host, "sh", "-c", command, user="root", stdin=stdin).stdout

        cloud.aws.address = host.address
        cloud.run("present", count=1).checked()
        (instance,) = cloud.aws.instances("running")
        # As cloud-init does.
        _, data = user_data(cloud.aws, instance["InstanceId"])
        shell("cat > /etc/ssh/ssh_host_ed25519_key", data["ssh_keys"]["ed25519_private"])
        shell("cat > /etc/ssh/ssh_host_ed25519_key.pub", data["ssh_keys"]["ed25519_public"])
        shell("systemctl restart ssh")
        shell("cat >> /home/train/.ssh/authorized_keys", data["ssh_authorized_keys"][0] + "\n")
        login = {
            "ansible_ssh_private_key_file": str(cloud.key),
            "aws_instances_user": "train",
            "aws_instances_replace_host_keys": True,
            "count": 1,
        }
        cloud.run("present", **login).checked()
        own = shell("cat /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
        assert own != data["ssh_keys"]["ed25519_public"].split()[1]
        assert instance["InstanceId"] in (cloud.keys / "known_hosts").read_text()
        assert own in (cloud.keys / "known_hosts").read_text()
        assert instance["InstanceId"] not in (cloud.keys / "known_hosts.first").read_text()
        assert not list(cloud.keys.glob(f"{REGION}-*"))
        assert cloud.run("present", **login).checked().changed == 0

        # Another host at the address is refused.
        shell("rm /etc/ssh/ssh_host_ed25519_key*")
        shell("ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key")
        shell("systemctl restart ssh")
        words = ["-i", str(REPOSITORY / "inventory/aws"), "-m", "ping", "worker-0"]
        key = ["-u", "train", "--private-key", str(cloud.key)]
        done = run("ansible", *words, *key, env=cloud.environment)
        assert done.returncode == 4, done.stdout
        assert "IDENTIFICATION HAS CHANGED" in done.stdout + done.stderr
