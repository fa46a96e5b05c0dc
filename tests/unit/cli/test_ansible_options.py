"""Variables from the command line and Python, and the file that passes them to Ansible."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from train.cli.ansible_options import (
    file_of,
    mentions,
    parse_variables,
    plain_variables,
)
from train.gang.extra_variables import Unsafe


def test_whether_an_inventory_mentions_a_variable(tmp_path: Path) -> None:
    hosts = tmp_path / "lab/hosts.yml"
    hosts.parent.mkdir()
    hosts.write_text("worker: {hosts: {a: {a_variable: 1}}}")
    (tmp_path / "group_vars/all").mkdir(parents=True)
    (tmp_path / "group_vars/all/job.yml").write_text("another_variable: 1")
    (tmp_path / "file.ini").write_text("[worker]\na")
    assert mentions(tmp_path / "lab", "a_variable")
    assert mentions([tmp_path / "file.ini", hosts], "a_variable")
    assert mentions(tmp_path / "file.ini", "another_variable")
    assert not mentions(tmp_path / "lab", "another_variable")
    assert not mentions(["host1,host2,", tmp_path / "nowhere"], "a_variable")
    assert not mentions(None, "a_variable")


NUMBERS = "{A: 1.10, B: 010, C: 1e-4, D: 2024-01-01, NO: x, E: true, F: ~, G: 0x1F, <<: {H: 5.0}}"
TEXTS = {"A": "1.10", "B": "010", "C": "1e-4", "D": "2024-01-01", "NO": "x", "G": "0x1F"}


def test_numbers_for_the_script_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "variables.yml"
    path.write_text(f"train_job_environment: {NUMBERS}\ntrain_job_args: [010, 1.50]\nother: 010\n")
    for given in (
        [f"@{path}"],
        [f"train_job_environment={NUMBERS}", "train_job_args=[010, 1.50]", "{other: 010}"],
    ):
        variables, _ = parse_variables(given)
        assert variables["train_job_environment"] == {**TEXTS, "E": True, "F": None, "H": "5.0"}
        assert variables["train_job_args"] == ["010", "1.50"]
        assert variables["other"] == 8


def test_values_of_python_and_yaml_that_json_does_not_know() -> None:
    text = "d: 2024-01-01, s: !!set {b, a}, b: !!binary aGk=, o: !!omap [{k: v}]"
    assert parse_variables([f'{{{text}, u: "\\ud83d\\ude00"}}'])[0] == {
        **{"d": "2024-01-01", "s": ["a", "b"], "b": "hi", "o": [["k", "v"]], "u": "😀"}
    }
    given = {"p": Path("/x"), "t": (1, 2.5), "d": datetime.date(2024, 1, 1), "n": None}
    assert plain_variables(given) == {"p": "/x", "t": [1, 2.5], "d": "2024-01-01", "n": None}
    for wrong, words in (
        (object(), "unsupported type object"),
        (b"\xff", "base64"),
        ("\udc80", "UTF-8"),
    ):
        with pytest.raises(ValueError, match=f"train_job_x .*{words}"):
            plain_variables({"train_job_x": [wrong]})


@pytest.mark.parametrize(
    "text", ["x={{ y }}/z", "x={% if a %}b{% endif %}", "x={a: !unsafe '{{ y }}'}"]
)
def test_templates_on_the_command_line(text: str) -> None:
    (value,) = parse_variables([text])[0].values()
    assert value in ("{{ y }}/z", "{% if a %}b{% endif %}", {"a": "{{ y }}"})
    with pytest.raises(ValueError, match="-e x=\\[1"):
        parse_variables(["x=[1"])


def test_what_is_data_in_the_file_for_ansible() -> None:
    texts = [
        "{{ x }}",
        "{% raw %}",
        "{#",
        "#jinja2:a",
        "yes",
        "",
        "1e3",
        "\n",
        "\\",
        "ü😀\u2028\x1b",
    ]
    variables = {
        "train_job_args": texts,
        "train_job_environment": {"A": texts[0], "B": 1, "C": "null"},
        "train_job_script": "/a/{{ b }}/main.py",
        "train_job_root": "{{ x }}",
        "other": {"a": Unsafe("{{ y }}")},
    }
    unsafe = []
    loader: Any = type("Reader", (yaml.SafeLoader,), {})

    def keep(_: Any, node: Any) -> str:
        unsafe.append(node.value)
        return str(node.value)

    loader.add_constructor("!unsafe", keep)
    assert yaml.load(file_of(variables), loader) == variables
    data = [*texts[:4], "{{ x }}", "/a/{{ b }}/main.py", "{{ y }}"]
    assert sorted(unsafe) == sorted(data)


def test_paths_of_this_machine_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.yml").write_text("train_job_metrics_dir: prom\ntrain_job_root: data\n")
    given = ["train_job_script=main.py", "{train_job_include: [a, /b]}", "@more.yml"]
    given += ["train_job_requirements=auto", "ansible_ssh_private_key_file=key"]
    assert parse_variables(given)[0] == {
        "train_job_script": f"{tmp_path}/main.py",
        "train_job_include": [f"{tmp_path}/a", "/b"],
        "train_job_metrics_dir": f"{tmp_path}/prom",
        "train_job_root": "data",  # a path on the hosts
        "train_job_requirements": "auto",
        "ansible_ssh_private_key_file": f"{tmp_path}/key",
    }
    kept: dict[str, Any] = {
        "train_job_metrics_dir": "{{ x }}/prom",
        "train_job_requirements": "",
        "a": "main.py",
    }
    kept["train_job_include"] = None
    assert plain_variables(kept) == kept
    assert plain_variables({"train_job_script": "{{ x }}"}) == {
        "train_job_script": f"{tmp_path}/{{{{ x }}}}"  # data, never a template
    }
    with pytest.raises(ValueError, match=r"train_job_metrics_dir: ~nobody-here: .* home"):
        parse_variables(["train_job_metrics_dir=~nobody-here"])
