"""Sources of an installation: the wheel, the execution environment, the survey for AWX."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_builder.cli import parse_args
from packaging.requirements import Requirement

from tests.support.lab import REPOSITORY, run
from train import VERSION
from train.gang import COLLECTION
from train.gang.variables import job_variables

ENVIRONMENT = REPOSITORY / "execution-environment.yml"
ANSIBLE_PAGE = REPOSITORY / "docs/ansible.md"
INSTALL_PAGE = REPOSITORY / "docs/install.md"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
GALAXY = yaml.safe_load((REPOSITORY / "galaxy.yml").read_text())


def listed(name: str) -> list[str]:
    """Return the packages in a file of requirements/, without other files that it includes."""
    lines = (REPOSITORY / "requirements" / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def locked(python: str) -> dict[str, str]:
    """Return the versions in control.txt for a version of Python."""
    text = (REPOSITORY / "requirements/control.txt").read_text()
    found = [
        Requirement(line.rstrip("\\ ")) for line in re.findall(r"^\w.*==.*$", text, re.MULTILINE)
    ]
    values = {"python_full_version": f"{python}.0", "python_version": python}
    return {
        one.name: str(one.specifier).removeprefix("==")
        for one in found
        if one.marker is None or one.marker.evaluate(values)
    }


def test_a_wheel_requires_the_packages_that_are_locked() -> None:
    assert PROJECT["dependencies"] == listed("control.in")
    assert PROJECT["optional-dependencies"] == {"mlflow": listed("mlflow.in")}


def test_the_version_is_the_same_everywhere() -> None:
    assert {PROJECT["version"], GALAXY["version"]} == {VERSION}
    assert f"{GALAXY['namespace']}.{GALAXY['name']}" == COLLECTION
    wheels = re.findall(r"dist/(\S+?)-py3-none-any\.whl", INSTALL_PAGE.read_text())
    assert set(wheels) == {f"tensorflow_ansible-{VERSION}"}
    tags = re.findall(r"tensorflow-ansible:(\S+)", ANSIBLE_PAGE.read_text())
    assert set(tags) == {VERSION}


def test_the_options_of_installers_exist() -> None:
    found = 0
    for line in re.findall(r"^(?:uv|pipx) .*$", INSTALL_PAGE.read_text(), re.MULTILINE):
        words = re.findall(r"[^\s\"=]+", line)
        if words[0] == "uv":
            command = [
                str(Path(sys.executable).parent / "uv"),
                *words[1 : 3 - (words[1] == "build")],
            ]
        else:
            command = [sys.executable, "-m", "pip", "install"]  # for --pip-args
        known = run(*command, "--help").stdout.split()
        for option in words:
            if option.startswith("--") and option != "--pip-args":
                assert option in {word.rstrip(",") for word in known}, line
                found += 1
    assert found >= 5


def test_the_execution_environment_is_accepted(tmp_path: Path) -> None:
    shutil.copy(ENVIRONMENT, tmp_path)
    defined = yaml.safe_load(ENVIRONMENT.read_text())
    archive = f"{GALAXY['namespace']}-{GALAXY['name']}-{VERSION}.tar.gz"
    assert [file["src"] for file in defined["additional_build_files"]] == [archive]
    (tmp_path / archive).write_bytes(b"")
    program = str(Path(sys.executable).parent / "ansible-builder")
    words = ["create", "--output-filename", "Containerfile"]
    done = run(program, *words, cwd=tmp_path, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    made = (tmp_path / "context/Containerfile").read_text()
    assert f'EE_BASE_IMAGE="{defined["images"]["base_image"]["name"]}"' in made
    # The path of the archive in the requirements is its path in the image's build folder.
    (collection,) = yaml.safe_load((tmp_path / "context/_build/requirements.yml").read_text())[
        "collections"
    ]
    assert collection["type"] == "file"
    assert (tmp_path / "context/_build" / collection["name"]).is_file()
    assert "COPY _build /build\nWORKDIR /build\n" in made


def test_a_wrong_execution_environment_is_refused(tmp_path: Path) -> None:
    defined = yaml.safe_load(ENVIRONMENT.read_text())
    defined["dependencies"]["pythons"] = []
    (tmp_path / ENVIRONMENT.name).write_text(json.dumps(defined))
    program = str(Path(sys.executable).parent / "ansible-builder")
    done = run(program, "create", cwd=tmp_path, stderr=subprocess.STDOUT)
    assert done.returncode != 0
    assert "pythons" in done.stdout


def test_the_execution_environment_has_the_locked_versions() -> None:
    dependencies = yaml.safe_load(ENVIRONMENT.read_text())["dependencies"]
    wanted = [dependencies[name]["package_pip"] for name in ("ansible_core", "ansible_runner")]
    versions = locked("3.13")  # Python of the base image
    for text in [*wanted, *dependencies["python"]]:
        name, _, version = text.partition("==")
        assert versions[name] == version


def test_the_commands_of_ansible_builder_are_accepted() -> None:
    lines = re.findall(r"^ansible-builder (.*)$", ANSIBLE_PAGE.read_text(), re.MULTILINE)
    assert [parse_args(line.split()).action for line in lines] == ["build"]


SURVEY: list[dict[str, Any]] = json.loads((REPOSITORY / "docs/awx/survey.json").read_text())["spec"]
#: The role's defaults, without rendered templates.
DEFAULTS = yaml.safe_load((REPOSITORY / "roles/train_job/defaults/main.yml").read_text())
#: The types of questions in AWX by the type of the role's variable.
TYPES = {
    "str": ("text",),
    "path": ("text",),
    "list": ("text",),
    "int": ("integer", "multiplechoice"),
    "float": ("integer", "float"),
    "bool": ("multiplechoice",),
}


@pytest.mark.parametrize("question", SURVEY, ids=lambda question: str(question["variable"]))
def test_the_survey_asks_for_variables_of_the_role(question: dict[str, Any]) -> None:
    known, _ = job_variables.options()
    assert question["variable"] in known
    option = known[question["variable"]]
    assert question["type"] in TYPES[option.kind]
    assert question["question_name"]
    assert not option.secret
    default = question["default"]
    usual = DEFAULTS[question["variable"]]
    if question["type"] == "multiplechoice":
        # Ansible converts the texts of AWX.
        choices = [yaml.safe_load(choice) for choice in question["choices"]]
        assert choices == list(option.choices or (False, True))
        assert yaml.safe_load(default) == usual
    elif question["type"] == "integer":
        assert isinstance(default, int)
        assert (default, question["min"]) == (usual, option.least)
        assert question["max"] > question["min"]
    elif "{{" in str(usual):  # the role's default is not of use in a container
        assert question["required"]
        assert question["min"] == 1
    else:
        assert default == (usual or "")
        assert not question["required"]


def test_the_survey_has_each_variable_once() -> None:
    names = [question["variable"] for question in SURVEY]
    assert len(set(names)) == len(names) == 10
    fields = {tuple(sorted(question)) for question in SURVEY}
    assert len(fields) == 1


def test_the_playbook_for_awx_uses_options_that_exist() -> None:
    page = ANSIBLE_PAGE.read_text()
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (play,) = (one[0] for one in blocks if isinstance(one, list) and "tasks" in one[0])
    (task,) = play["tasks"]
    given = task["awx.awx.job_template"]
    assert (REPOSITORY / given["playbook"]).is_file()
    assert "docs/awx/survey.json" in given["survey_spec"]
    program = str(Path(sys.executable).parent / "ansible-doc")
    shown = run(program, "--json", "awx.awx.job_template")
    if not json.loads(shown.stdout or "{}"):
        pytest.skip("this version of the package ansible does not contain awx.awx")
    options = json.loads(shown.stdout)["awx.awx.job_template"]["doc"]["options"]
    assert set(given) <= set(options)
    imported = [one[0] for one in blocks if isinstance(one, list) and "import_playbook" in one[0]]
    names = [one["import_playbook"] for one in imported]
    assert names == [f"{COLLECTION}.train"]
