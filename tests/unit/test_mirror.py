"""Each module of the launcher has its unit tests in the file of the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
#: Modules without such a file, and why.
EXCEPTIONS = {
    "gang/cause_names.py": "only defines names",
    "gang/doctor/doctor_records.py": "only defines records",
    "gang/errors.py": "only defines classes",
    "host/end_causes.py": "only defines names",
    "host/frameworks.py": "only defines names",
    "host/host_facts.py": "only defines records, which test_suitability.py fills",
}


def modules(folder: str) -> set[str]:
    """Return the modules in a folder of train/, by their paths from there."""
    paths = (REPOSITORY / "train" / folder).rglob("*.py")
    found = {str(path.relative_to(REPOSITORY / "train")) for path in paths}
    return {name for name in found if Path(name).name != "__init__.py"}


def file_of(module: str) -> Path:
    path = Path(module)
    return REPOSITORY / "tests/unit" / path.parent / f"test_{path.name}"


@pytest.mark.parametrize("folder", ["cli", "gang", "host"])
def test_each_module_has_its_tests(folder: str) -> None:
    found = modules(folder)
    assert len(found) > 10
    lacking = {name for name in found if not file_of(name).exists()}
    assert lacking == {name for name in EXCEPTIONS if name.startswith(f"{folder}/")}
