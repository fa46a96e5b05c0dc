"""The role's variables as users write them, and the errors, which name the variable."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from train.gang import REPOSITORY
from train.gang.errors import UserError
from train.gang.variables import job_variables, script_environment

ENVIRONMENT = job_variables.ENVIRONMENT
#: Values without templates, whose spelling in a file is unknown.
SOURCES = script_environment.Sources(
    lambda value: value, lambda value: None, lambda value: "hosts.yml:4"
)


def given(**values: Any) -> job_variables.Given:
    environment = script_environment.merge([values.pop(ENVIRONMENT, {})], SOURCES)
    places = dict.fromkeys(values, "hosts.yml:4")
    values.setdefault(job_variables.ARGUMENTS, [])
    places.setdefault(job_variables.ARGUMENTS, "")
    return job_variables.Given([*values], values, places, environment, [])


def message_of(**hosts: job_variables.Given) -> str:
    with pytest.raises(UserError) as refused:
        job_variables.check(hosts, lambda value: None)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("train_job_port", "abc", 'a string, "abc" (hosts.yml:4), expected a whole number: '),
        ("train_job_port", True, "a boolean, true"),
        ("train_job_port", 1.5, "a number, 1.5"),
        ("train_job_max_restarts", "many", "expected a whole number of 0 or more"),
        ("train_job_max_restarts", None, "null (hosts.yml:4)"),
        ("train_job_grace", -1, "expected a number of 0 or more"),
        ("train_job_grace", "nan", "expected a number of 0 or more"),
        ("train_job_start_wait_timeout", "0", "expected a whole number of 1 or more"),
        ("train_job_log_limit_mb", 7.5, "expected a number of 8 or more: correct"),
        ("train_job_keras", 4, "expected one of 2, 3"),
        ("train_job_readable_by", False, "expected one of owner, all"),
        ("train_job_checkpoint_copy", "maybe", "expected true or false"),
        ("train_job_root", ["/data"], "expected a string"),
        *(
            ("train_job_preemption", value, "expected one of auto, gcp, aws, azure, off, or a URL")
            for value in (
                True,
                "on",
                "",
                None,
                1,
                "ftp://a/b",
                "http://",
                "http://a:b@c/d",
                "http://a/ b",
            )
        ),
        ("train_job_include", [["x"]], "expected a list"),
        ("train_job_replace", ["terraform", "apply"], "expected a string"),
        ("train_job_replace_timeout", 0, "expected a number of 1 or more"),
        ("train_job_notify_webhook", {"url": "hidden"}, "is a dictionary (hosts.yml:4), expected"),
    ],
)
def test_a_wrong_type_is_refused_by_name(name: str, value: Any, message: str) -> None:
    refused = message_of(a=given(**{name: value}), b=given(**{name: value}))
    assert f"{name} of a, b is " in refused
    assert message in refused
    assert "hidden" not in refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("train_job_port", value) for value in (12345, "12345", "12345.0", 12345.0)),
        *(("train_job_grace", value) for value in (0, "1.5", 1e3)),
        *(("train_job_force", value) for value in (True, "yes", "FALSE", 0)),
        *(("train_job_exclude", value) for value in ([], "*.csv", ["*.csv"])),
        ("train_job_id", 2024),
        *(
            ("train_job_preemption", value)
            for value in ("auto", "off", False, "aws", "http://10.0.0.1:8080/spot?a=b", "https://a")
        ),
        ("train_job_keras", "3"),
        ("train_job_replace", "ansible-playbook playbooks/gcp.yml -e state=present"),
    ],
)
def test_values_as_people_write_them(name: str, value: Any) -> None:
    assert job_variables.check({"a": given(**{name: value})}, lambda value: None) == {"a": []}


def test_a_command_without_its_program_is_refused() -> None:
    values = {"train_job_replace": "playbooks/gcp.yml -e state=present"}
    refused = message_of(a=given(**values), b=given(**values))
    named = "train_job_replace of a, b begins with playbooks/gcp.yml (hosts.yml:4), which is not"
    assert refused.startswith(named)


def test_a_name_that_the_role_does_not_have() -> None:
    refused = message_of(a=job_variables.Given(["train_job_prot"], {}, {}, ({}, []), []))
    assert "unknown variable train_job_prot: did you mean train_job_" in refused


def test_what_holds_for_the_gang_is_the_same_on_all_hosts() -> None:
    refused = message_of(a=given(train_job_seed=0), b=given(train_job_seed=5), c=given())
    assert (
        "train_job_seed must be the same for the whole gang, but differs between hosts" in refused
    )
    assert "0 on a (hosts.yml:4); 5 on b (hosts.yml:4)" in refused
    secret = given(train_job_notify_webhook="https://a/secret")
    refused = message_of(a=secret, b=given(train_job_notify_webhook="https://b/secret"))
    assert "secret" not in refused
    alike = {"a": given(train_job_seed="5"), "b": given(train_job_seed=5)}
    job_variables.check(alike, lambda value: None)


def test_what_holds_for_a_rank_may_differ() -> None:
    hosts = {
        "a": given(train_job_args="--rank 0", train_job_port=1, train_job_grace=1),
        "b": given(train_job_args=["--rank", 1], train_job_port=2, train_job_grace=2),
    }
    found = job_variables.check(hosts, lambda value: None)
    assert found == {"a": ["--rank", "0"], "b": ["--rank", "1"]}


def test_every_variable_of_a_rank_is_a_variable() -> None:
    main, names = job_variables.options()
    assert set(main) <= names
    assert {name for name, option in main.items() if option.for_rank} >= {job_variables.ARGUMENTS}


def test_the_limits_of_numbers_are_those_of_their_descriptions() -> None:
    path = REPOSITORY / "roles/train_job/meta/argument_specs.yml"
    specs = yaml.safe_load(path.read_text())["argument_specs"]["main"]["options"]
    told = {
        name: float(found[1])
        for name, spec in specs.items()
        if (found := re.search(r"At least ([\d.]+)\.", str(spec["description"])))
    }
    main, _ = job_variables.options()
    assert {name: one.least for name, one in main.items() if one.least is not None} == told
    assert len(told) == 28
