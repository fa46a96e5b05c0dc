"""The variables of other frameworks than TensorFlow: tests/data/rendezvous has the cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from tests.support.lab import REPOSITORY
from train.gang.plan import placement

CASES = sorted((REPOSITORY / "tests/data/rendezvous").glob("*.yml"))
TEMPLATES = REPOSITORY / "roles/train_job/templates"


@pytest.mark.parametrize(
    ("template", "case"),
    [
        pytest.param(template, case, id=f"{template}-{case.stem}")
        for case in CASES
        for template in ("ranks", "jax", "torch")
        if template in yaml.safe_load(case.read_text())
    ],
)
def test_variables_of_each_host(template: str, case: Path) -> None:
    given = yaml.safe_load(case.read_text())
    missing = dict.fromkeys(given.get("missing", ()), "is unreachable")
    chosen = placement.choose(given["groups"], missing, least=given.get("min_workers", 0))
    variables: dict[str, Any] = {
        "__train_job_placement": chosen,
        "__train_job_id": given.get("job", ""),
        "__train_job_attempt": given.get("attempt", 1),
        "train_job_max_restarts": 3,
        # The result of the task that checks the hosts.
        "__train_job_checks": {
            "hosts": {name: {"host": found} for name, found in given["hosts"].items()}
        },
    }
    templar = Templar(loader=DataLoader(), variables=variables)
    text = (TEMPLATES / f"{template}.json.j2").read_text()
    rendered = templar.template(trust_as_template(text))
    by_host = json.loads(rendered) if isinstance(rendered, str) else rendered
    assert by_host == given[template]
    assert [*by_host] == chosen["hosts"]
