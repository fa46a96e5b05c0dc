"""Google Cloud, by a stand-in of its API: instances from their creation to their removal."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.google_cloud import (
    OPERATOR,
    PROJECT,
    ApiError,
    Containers,
    GoogleCloud,
    Nowhere,
    google_cloud,
)
from tests.support.lab import (
    REPOSITORY,
    Lab,
    environment,
    once,
    playbook_command,
    run,
    tensorflow_mounts,
)
from tests.support.set_up_role import Play

NO_HOSTS = Path("localhost,")


class Operator:
    """A user with a key, who runs playbooks against the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder / "id_ed25519"
        self.known_hosts = folder / "ssh/known_hosts"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)]
        subprocess.run(words, check=True)

    def command(self, given: Mapping[str, Any], *options: str) -> list[str]:
        own = {
            "gcp_instances_ssh_public_key": f"{self.key}.pub",
            "gcp_instances_known_hosts": str(self.known_hosts),
        }
        return playbook_command("gcp.yml", NO_HOSTS, {**own, **given}, *options)

    def gcp(self, state: str, *options: str, **given: Any) -> Play:
        """Run ``playbooks/gcp.yml`` to its end."""
        command = self.command({"state": state, **given}, *options)
        done = run(*command, stderr=subprocess.STDOUT, timeout=600)
        return Play(done.returncode, done.stdout)

    def inventory(self) -> Path:
        """Return a copy of ``inventory/gcp`` for the project and files of the test."""
        copy = self.folder / "inventory"
        shutil.copytree(REPOSITORY / "inventory/gcp", copy)
        config, login = copy / "train.gcp.yml", copy / "group_vars/all/ansible.yml"
        config.write_text(config.read_text().replace("my-project", PROJECT))
        text = login.read_text().replace("~/.ssh/known_hosts_gcp", str(self.known_hosts))
        login.write_text(text.replace("# ansible_ssh_private_key_file: ~/.ssh/id_ed25519", ""))
        keys = {"ansible_ssh_private_key_file": str(self.key)}
        (copy / "group_vars/all/key.yml").write_text(json.dumps(keys))
        return copy


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    monkeypatch.setenv("USER", "Ada.Lovelace")
    # The addresses of containers are used again, and a socket's path must be short.
    sockets = tempfile.mkdtemp(prefix="gcp-")
    monkeypatch.setenv("ANSIBLE_SSH_CONTROL_PATH_DIR", sockets)
    yield Operator(tmp_path)
    shutil.rmtree(sockets, ignore_errors=True)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleCloud]:
    """The stand-in, with machines that do not exist."""
    with google_cloud(tmp_path / "cloud", Nowhere()) as standing:
        for name, value in standing.environment().items():
            monkeypatch.setenv(name, value)
        yield standing


@pytest.fixture(scope="module")
def mounts(shared: Path) -> Any:
    """Return what containers need of TensorFlow. Its wheels cannot come through the stand-in."""
    return json.loads(once(shared, "mounts", lambda: json.dumps(tensorflow_mounts("3.11"))))


@pytest.fixture
def containers(mounts: Any, cloud: GoogleCloud) -> Iterator[Containers]:
    """Containers as the stand-in's machines, with TensorFlow's wheels."""
    machines = Containers(f"gcp-{secrets.token_hex(4)}", mounts)
    cloud.machines = machines
    try:
        yield machines
    finally:
        machines.close()


@pytest.mark.docker
@pytest.mark.tensorflow
def test_from_present_over_setup_and_a_job_to_absent(
    cloud: GoogleCloud, containers: Containers, operator: Operator, tmp_path: Path, shared: Path
) -> None:
    made = operator.gcp("present", cloud_max_hours=3).checked()
    assert "2 x 3 = 6 GPU hours" in made.shown
    assert made.shown.index("GPU hours") < made.shown.index("Create in zone")
    assert containers.left() != []
    timer = containers.exec("worker-0", "systemctl list-timers --all train-max-hours.timer")
    assert "train-max-hours.service" in timer
    assert containers.exec("worker-0", "systemctl show train-max-hours.timer -p TimersMonotonic")
    real = containers.exec("worker-1", "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    number = cloud.instances["europe-west2-a", "worker-1"]["id"]
    assert f"gcp-{number} ssh-ed25519 {real}" in operator.known_hosts.read_text()

    inventory = operator.inventory()

    def set_up(*options: str) -> str:
        given = {"setup_roles": ["tensorflow"], "tensorflow_wheelhouse": "/wheelhouse"}
        command = playbook_command("setup.yml", inventory, given, *options)
        ready = run(*command, stderr=subprocess.STDOUT, timeout=900)
        assert ready.returncode == 0, ready.stdout[-3000:]
        return containers.exec("worker-0", "readlink /home/train/train/venv").strip()

    # The environments of all hosts in containers are the same folder.
    once(shared, "environment", lambda: set_up("--limit", "worker-0"))
    set_up()

    lab = Lab(inventory, tmp_path / "runs", {"train_job_max_restarts": 0})
    job = lab.run("--job", "cloud", arguments=["--epochs", "1"])
    assert job.code == 0, job.error
    weights = {rank["task"]: rank["weights_sha256"] for rank in job.result["ranks"]}
    assert set(weights) == {"worker-0", "worker-1"}
    assert len(set(weights.values())) == 1
    private = [
        instance["networkInterfaces"][0]["networkIP"]
        for _, instance in sorted(cloud.instances.items())
    ]
    manifest = json.loads((lab.runs_dir / "cloud/manifest.json").read_text())
    cluster = manifest["cluster"]["worker"]
    assert cluster == [f"{address}:12345" for address in private]

    operator.gcp("absent").checked()
    assert (cloud.names(), containers.left(), cloud.firewalls) == ([], [], {})
    assert "gcp-" not in operator.known_hosts.read_text()


@pytest.mark.soak
@pytest.mark.docker
def test_a_run_that_is_interrupted_is_removed_by_its_label(
    cloud: GoogleCloud, containers: Containers, operator: Operator
) -> None:
    reached = threading.Event()
    ended = threading.Event()

    def wait(name: str) -> None:
        if name == "worker-1":
            reached.set()
            ended.wait(60)
            raise ApiError(503, "backendError", "the operator has left")

    cloud.before_insert = wait
    command = operator.command({"state": "present"})
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL, text=True
    )
    try:
        assert reached.wait(240)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        ended.set()
    assert cloud.names() == ["worker-0"]
    assert len(containers.left()) == 1
    # As if it were of another day, with other settings.
    removed = operator.gcp("absent", count=1, zones="europe-west2-c").checked()
    assert "Deleting: worker-0" in removed.shown
    assert (cloud.names(), containers.left(), cloud.firewalls) == ([], [], {})


@pytest.mark.soak
def test_a_cluster_is_planned_created_kept_listed_stopped_and_removed(
    cloud: GoogleCloud, operator: Operator
) -> None:
    gang = {"gcp_instances_others": {"chief": 1, "spare": 1}, "count": 1}

    planned = operator.gcp("present", "--check", **gang).checked()
    assert "Would create: chief-0, worker-0, spare-0" in planned.shown
    assert "Would create spare-0 in the first of these zones that has capacity: europe-west2-a" in (
        planned.shown
    )
    assert "3 x 24 = 72 GPU hours" in planned.shown
    assert planned.changed > 0
    assert (cloud.names(), cloud.firewalls, operator.known_hosts.exists()) == ([], {}, False)
    assert {r for r in cloud.requests if not r.startswith("GET ")} == {"POST /token"}

    assert operator.gcp("present", **gang).checked().changed > 0
    assert cloud.names() == ["chief-0", "spare-0", "worker-0"]
    check_instance(cloud.instances["europe-west2-a", "worker-0"], operator)
    check_rules(cloud)
    assert len(operator.known_hosts.read_text().splitlines()) == 3

    # The hours of existing instances are those with which they were created.
    again = operator.gcp("present", **gang, cloud_max_hours=5).checked()
    assert again.changed == 0, again.output
    assert "GPU hours" not in again.shown
    assert again.shown.count("powers off 24 hours after its start") == 3
    assert "5 hours" not in again.shown

    words = ["ansible-inventory", "-i", str(operator.inventory()), "--list"]
    listed = json.loads(run(*words).stdout)
    groups = {name: listed[name]["hosts"] for name in ("chief", "worker", "spare")}
    assert groups == {"chief": ["chief-0"], "worker": ["worker-0"], "spare": ["spare-0"]}
    variables = listed["_meta"]["hostvars"]["worker-0"]
    interface = cloud.instances["europe-west2-a", "worker-0"]["networkInterfaces"][0]
    public = interface["accessConfigs"][0]["natIP"]
    assert variables["ansible_host"] == {"__ansible_unsafe": public}  # is never a template
    assert variables["gcp_internal_address"] == {"__ansible_unsafe": interface["networkIP"]}
    assert variables["train_job_address"] == "{{ gcp_internal_address }}"

    # Another cluster is listed and left alone.
    other = operator.gcp("list", cluster="other").checked()
    assert other.changed == 0
    assert re.search(
        "cluster train, worker-0, europe-west2-a, n1-standard-4, 1 x nvidia-tesla-t4, RUNNING, "
        r"created 0[.]\d hours ago, owner ada-lovelace",
        other.shown,
    )
    operator.gcp("absent", cluster="other").checked()
    assert len(cloud.names()) == 3

    doomed = operator.gcp("stopped", "--check").checked()
    assert "Would stop: chief-0, spare-0, worker-0. Their disks still cost money" in doomed.shown
    assert doomed.changed == 1
    assert operator.gcp("stopped").checked().changed == 1
    assert {one["status"] for one in cloud.instances.values()} == {"TERMINATED"}
    labels = {one["labels"]["train_task"] for one in cloud.instances.values()}
    assert labels == {"chief", "worker", "spare"}
    assert "are stopped already" in operator.gcp("stopped").checked().shown
    started = operator.gcp("present", **gang, cloud_max_hours=5).checked()
    assert "Starting: chief-0, spare-0, worker-0" in started.shown
    assert "3 x 24 = 72 GPU hours" in started.shown
    assert {one["status"] for one in cloud.instances.values()} == {"RUNNING"}

    doomed = operator.gcp("absent", "--check").checked()
    assert "Would delete: chief-0, spare-0, worker-0, train-train-ssh" in doomed.shown
    assert doomed.changed > 0
    assert (len(cloud.names()), len(cloud.firewalls)) == (3, 3)
    operator.gcp("absent").checked()
    assert (cloud.names(), cloud.firewalls) == ([], {})
    assert "has no instances in the project" in operator.gcp("stopped").checked().shown


def check_instance(instance: dict[str, Any], operator: Operator) -> None:
    metadata = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    key = " ".join(Path(f"{operator.key}.pub").read_text().split()[:2])
    assert metadata["ssh-keys"] == f"train:{key} train"
    assert metadata["enable-guest-attributes"] == "TRUE"
    assert metadata["block-project-ssh-keys"] == "TRUE"
    assert "--on-boot=24h systemctl poweroff" in metadata["startup-script"]
    assert instance["labels"] == {
        "train_cluster": "train",
        "train_task": "worker",
        "train_owner": "ada-lovelace",
        "train_max_hours": "24",
    }
    assert instance["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert instance["tags"]["items"] == ["train-train"]
    assert "serviceAccounts" not in instance


def check_rules(cloud: GoogleCloud) -> None:
    rules = {
        name: (
            rule["priority"],
            rule.get("allowed") or rule["denied"],
            rule.get("sourceRanges") or rule["sourceTags"],
            rule["targetTags"],
        )
        for name, rule in cloud.firewalls.items()
    }
    tag = ["train-train"]
    assert rules == {
        "train-train-ssh": (
            800,
            [{"IPProtocol": "tcp", "ports": ["22"]}],
            [f"{OPERATOR}/32"],
            tag,
        ),
        "train-train-peers": (
            800,
            [{"IPProtocol": "tcp", "ports": ["1024-65535"]}],
            tag,
            tag,
        ),
        "train-train-deny": (900, [{"IPProtocol": "all"}], ["0.0.0.0/0"], tag),
    }


def test_an_instance_is_created_in_one_zone_if_several_have_capacity(
    cloud: GoogleCloud, operator: Operator
) -> None:
    operator.gcp("present", zones="europe-west2-a,europe-west2-b").checked()
    assert sorted(cloud.instances) == [
        ("europe-west2-a", "worker-0"),
        ("europe-west2-a", "worker-1"),
    ]


@pytest.mark.soak
def test_the_next_zone_is_tried_if_one_has_no_capacity(
    cloud: GoogleCloud, operator: Operator
) -> None:
    given = {"zones": "europe-west2-a,europe-west2-b"}
    sources = ["192.0.2.1", "198.51.100.0/24"]
    cloud.full_zones = {"europe-west2-a"}
    made = operator.gcp("present", **given, count=1, gcp_instances_ssh_sources=sources).checked()
    assert "europe-west2-a has no capacity for worker-0" in made.shown
    assert list(cloud.instances) == [("europe-west2-b", "worker-0")]
    assert cloud.firewalls["train-train-ssh"]["sourceRanges"] == ["192.0.2.1/32", sources[1]]

    cloud.full_zones = {"europe-west2-a", "europe-west2-b"}
    refused = operator.gcp("present", **given, gcp_instances_ssh_sources=sources[:1])
    assert refused.code == 2
    assert (
        "worker-1 was not created: europe-west2-a, europe-west2-b have no capacity for "
        "nvidia-tesla-t4 now. Try europe-west2-c next" in refused.shown
    )
    assert list(cloud.instances) == [("europe-west2-b", "worker-0")]
    # An address that is no longer wanted is removed from the rule.
    assert cloud.firewalls["train-train-ssh"]["sourceRanges"] == ["192.0.2.1/32"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("rejected key", "Google rejects the credentials"),
        ("no key", "There are no usable Google Cloud credentials: run `gcloud auth"),
        ("no project", "No Google Cloud project is set: pass -e gcp_instances_project=PROJECT"),
        ("unknown project", "There is no Google Cloud project elsewhere, or the credentials"),
        ("no permission", "the credentials need the role roles/compute.admin"),
        ("quota", "The project's quota does not allow this. Ask for a higher one"),
        ("machine type", "The machine type m99 does not exist in the zone"),
        ("accelerator", "The zone has no accelerator nvidia-abacus for this machine type"),
        ("no SSH key", "create a key with `ssh-keygen -t ed25519`"),
        ("no package", "-m pip install google-auth requests"),
    ],
)
def test_a_mistake_is_one_message_with_its_remedy(
    case: str,
    message: str,
    cloud: GoogleCloud,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}
    if case == "rejected key":
        cloud.key_is_known = False
    elif case == "no key":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(operator.folder / "none.json"))
    elif case == "no project":
        monkeypatch.delenv("GCP_PROJECT")
    elif case == "unknown project":
        given["project"] = "elsewhere"
    elif case == "no permission":
        cloud.may_read = False
    elif case == "quota":
        cloud.over_quota = True
    elif case == "machine type":
        given["gcp_instances_machine_type"] = "m99"
    elif case == "accelerator":
        given["gcp_instances_accelerator_type"] = "nvidia-abacus"
    elif case == "no SSH key":
        given["gcp_instances_ssh_public_key"] = str(operator.folder / "none.pub")
    elif case == "no package":
        (operator.folder / "requests.py").write_text("raise ImportError")
        monkeypatch.setenv("PYTHONPATH", str(operator.folder))
    refused = operator.gcp("present", count=1, **given)
    assert refused.code == 2, refused.output
    assert message in refused.shown
    assert refused.output.count("fatal: ") == 1
    assert "Traceback" not in refused.output
    assert cloud.names() == []
