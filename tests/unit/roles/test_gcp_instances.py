"""Instances on Google Cloud: the parts of the role and its modules that call nothing."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.tensorflow_ansible.cluster.plugins.modules import gcp_host_keys

from tests.support.google_cloud import matches
from tests.support.lab import REPOSITORY

ROLE = REPOSITORY / "roles/gcp_instances"


def load(path: Path) -> Any:
    return DataLoader().load_from_file(str(path), trusted_as_template=True)


def templated(expression: str, **variables: Any) -> Any:
    """Return the value of a variable of the role, with its defaults and the given variables."""
    known = {**load(ROLE / "defaults/main.yml"), **load(ROLE / "vars/main.yml"), **variables}
    return Templar(loader=DataLoader(), variables=known).template(known[expression])


def test_the_instances_are_named_after_their_tasks() -> None:
    wanted = templated(
        "__gcp_instances_wanted", gcp_instances_count="2", gcp_instances_others={"spare": 1}
    )
    assert wanted == [
        {"name": "worker-0", "task": "worker"},
        {"name": "worker-1", "task": "worker"},
        {"name": "spare-0", "task": "spare"},
    ]
    named = templated("__gcp_instances_names", gcp_instances_cluster="big")
    assert named == ["big-worker-0", "big-worker-1"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"gcp_instances_max_hours": "5"},
            "2 GPUs (nvidia-tesla-t4) and 2 n1-standard-4 for up to 5 hours: 2 x 5 = 10 GPU hours, "
            "2 x 5 = 10 instance hours.",
        ),
        (
            {"gcp_instances_count": 1, "gcp_instances_accelerator_count": 4},
            "4 GPUs (nvidia-tesla-t4) and 1 n1-standard-4 for up to 24 hours: 4 x 24 = 96 GPU "
            "hours, 1 x 24 = 24 instance hours.",
        ),
        (
            {"gcp_instances_accelerator_type": ""},
            "2 n1-standard-4 for up to 24 hours: 2 x 24 = 48 instance hours.",
        ),
        # Stopped instances have the hours with which they were created.
        (
            {
                "gcp_instances_max_hours": 5,
                "gcp_instances_count": 3,
                "existing": {"worker-0": {"train_max_hours": "24"}, "worker-1": {}},
            },
            "2 GPUs (nvidia-tesla-t4) and 2 n1-standard-4 for up to 24 hours: 1 x 5 + 1 x 24 = 29 "
            "GPU hours, 1 x 5 + 1 x 24 = 29 instance hours. Without a known limit, and not "
            "counted: worker-1. Disks are charged",
        ),
    ],
)
def test_what_is_paid_for(given: dict[str, Any], expected: str) -> None:
    instances = [
        {"name": name, "state": "TERMINATED", "labels": {"train_cluster": "train", **labels}}
        for name, labels in given.get("existing", {}).items()
    ]
    found = {"instances": instances}
    cost = templated("__gcp_instances_cost", __gcp_instances_found=found, **given)
    assert cost.startswith(expected)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region", "The project's quota"),
        ("Invalid value for field 'resource.machineType': 'x'", "The machine type n1-standard-4"),
        ("The resource 'projects/p/zones/z/acceleratorTypes/x' was not found", "The zone has no"),
        ("The resource 'projects/p/zones/europe-x' was not found", "There is no zone europe-x"),
        ("The resource 'projects/p/global/images/family/x' was not found", "The image family"),
        ("something else", "Instances that exist already are found by their label"),
    ],
)
def test_an_error_has_the_remedy_of_its_first_pattern(error: str, remedy: str) -> None:
    remedies = templated("__gcp_instances_remedies", __gcp_instances_zone="europe-x")
    first = next(one["remedy"] for one in remedies if re.search(one["pattern"], error))
    assert first.startswith(remedy)


def test_the_message_of_an_error_is_found() -> None:
    text = "The field 'resource.machineType': 'm99'. It does not exist."
    inner = {"message": text, "domain": "global", "reason": "invalid"}
    answer = {"error": {"code": 400, "message": text, "errors": [inner]}}
    for error in (f"GCP returned error: {answer}", str([{"code": "INVALID", "message": text}])):
        found = re.search(templated("__gcp_instances_message"), error)
        assert found is not None
        assert found.group() == text


@pytest.mark.parametrize(
    "error",
    [
        "[{'code': 'ZONE_RESOURCE_POOL_EXHAUSTED', 'message': 'The zone'}]",
        "The zone 'projects/p/zones/z' does not have enough resources available",
    ],
)
def test_a_zone_without_capacity_is_recognized(error: str) -> None:
    assert re.search(templated("__gcp_instances_no_capacity"), error)


def test_only_a_key_of_its_type_is_taken_from_an_instance() -> None:
    kind = b"ssh-ed25519"
    blob = len(kind).to_bytes(4, "big") + kind + bytes(36)
    good = base64.b64encode(blob).decode()
    assert gcp_host_keys.is_key("ssh-ed25519", good)
    for bad in (good[:-1] + " ", f"{good}\n@cert-authority *", "", "AAAA", good * 100):
        assert not gcp_host_keys.is_key("ssh-ed25519", bad)
    assert not gcp_host_keys.is_key("ssh-rsa", good)


class Api:
    """Answers with guest attributes."""

    def __init__(self, items: list[dict[str, str]]) -> None:
        self._items = items

    def get(self, path: str, **params: str) -> dict[str, Any]:
        assert path == "zones/z/instances/worker-0/getGuestAttributes"
        assert params == {"queryPath": "hostkeys/"}
        return {"queryValue": {"items": self._items}}


def test_keys_of_other_types_are_ignored() -> None:
    kind = b"ssh-ed25519"
    value = base64.b64encode(len(kind).to_bytes(4, "big") + kind + bytes(36)).decode()
    items = [
        {"namespace": "hostkeys", "key": "ssh-ed25519", "value": f"{value}\n"},
        {"namespace": "hostkeys", "key": "ssh-rsa", "value": "no key"},
        {"namespace": "hostkeys", "key": "ssh-dss", "value": value},
    ]
    api: Any = Api(items)
    found = gcp_host_keys.published(api, {"name": "worker-0", "zone": "z", "id": "1"})
    assert found == {"ssh-ed25519": value}


def test_the_inventory_looks_for_the_labels_and_keys_of_the_role() -> None:
    config = load(REPOSITORY / "inventory/gcp/train.gcp.yml")
    instance = {"labels": {"train_cluster": "train"}, "status": "RUNNING"}
    wanted = " ".join(f"({one})" for one in config["filters"])
    assert matches(instance, wanted)
    assert not matches({**instance, "status": "TERMINATED"}, wanted)
    assert not matches({**instance, "labels": {"train_cluster": "big"}}, wanted)
    login = yaml.safe_load((REPOSITORY / "inventory/gcp/group_vars/all/ansible.yml").read_text())
    defaults = load(ROLE / "defaults/main.yml")
    words = login["ansible_ssh_common_args"].split()
    assert f"UserKnownHostsFile={defaults['gcp_instances_known_hosts']}" in words
    assert {"StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null"} <= set(words)
    assert login["ansible_user"] == defaults["gcp_instances_ssh_user"]
