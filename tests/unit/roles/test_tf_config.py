"""TF_CONFIG of each host of an inventory; each file in tests/data/tf_config is a case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from tests.support.lab import REPOSITORY
from train.gang.plan import machine_ranks, placement

CASES = sorted((REPOSITORY / "tests/data/tf_config").glob("*.yml"))
TEMPLATE = REPOSITORY / "roles/train_job/templates/tf_config.json.j2"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_tf_config_of_each_host(case: Path) -> None:
    given = yaml.safe_load(case.read_text())
    missing = dict.fromkeys(given.get("missing", ()), "is unreachable")
    machines = given.get("machines", {})
    groups = {
        kind: machine_ranks.in_order(hosts, lambda host: machines.get(host, host))
        for kind, hosts in given["groups"].items()
    }
    chosen = placement.choose(groups, missing, least=given.get("min_workers", 0))
    variables: dict[str, Any] = {
        "__train_job_placement": chosen,
        # The result of the task that checks the hosts.
        "__train_job_checks": {
            "hosts": {name: {"host": found} for name, found in given["hosts"].items()}
        },
    }
    templar = Templar(loader=DataLoader(), variables=variables)
    rendered = templar.template(trust_as_template(TEMPLATE.read_text()))
    by_host = json.loads(rendered) if isinstance(rendered, str) else rendered
    configs = {host: json.loads(text) for host, text in by_host.items()}
    assert configs == given["tf_config"]
    assert [*configs] == chosen["hosts"]
