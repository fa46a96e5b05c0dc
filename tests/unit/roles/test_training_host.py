"""The role ``training_host``: the packages that a host needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from tests.support.lab import REPOSITORY

ROLE = REPOSITORY / "roles/training_host"


def load(path: Path) -> Any:
    return DataLoader().load_from_file(str(path), trusted_as_template=True)


@pytest.mark.parametrize(
    ("python", "given", "missing"),
    [
        (["python 3.9"], {}, ["python3.11"]),
        (["python 3.12"], {}, []),
        (["python 3.9", "installed python3.11"], {}, []),
        ([], {}, ["python3.11"]),
        (["python 3.12"], {"tensorflow_python": "/usr/bin/python3.11"}, ["python3.11"]),
        (["python 3.12"], {"tensorflow_python": "python3"}, []),
        (["python 3.12"], {"training_host_packages": {"redhat": ["git", "python3.11"]}}, ["git"]),
        (
            ["python 3.12"],
            {
                "ansible_facts": {"os_family": "Debian"},
                "training_host_packages": {"debian": ["python3.11"]},
            },
            ["python3.11"],
        ),
    ],
)
def test_python_is_installed_where_the_hosts_own_is_too_old(
    python: list[str], given: dict[str, Any], missing: list[str]
) -> None:
    known = {
        **load(ROLE / "defaults/main.yml"),
        **load(ROLE / "vars/main.yml"),
        "ansible_facts": {"os_family": "RedHat"},
        "__training_host_probe": {"stdout_lines": ["user train", *python]},
        **given,
    }
    templar = Templar(loader=DataLoader(), variables=known)
    assert templar.template(known["__training_host_missing"]) == missing
