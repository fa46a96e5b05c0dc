"""Variables in inventories, in files and on the command line, and their values in the script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.jobs import write_script
from tests.support.lab import Lab, Labs, run
from train.cli.job import Job
from train.gang.errors import UserError

#: A script that shows its arguments and variables.
SHOW = """
import json, os, sys
found = {k: v for k, v in os.environ.items() if k.startswith("FROM_") or k == "TRAIN_SEED"}
print("GOT", json.dumps({"args": sys.argv[1:], "environment": found}))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    return write_script(tmp_path, SHOW)


def got(lab: Lab, job: str, task: str = "worker-0") -> dict[str, Any]:
    """Return the arguments and variables that a rank's script found."""
    log = (lab.runs_dir / job / f"logs/{task}.log").read_text()
    (line,) = [line for line in log.splitlines() if line.startswith("GOT ")]
    found: dict[str, Any] = json.loads(line[4:])
    found["environment"].pop("TRAIN_SEED")
    return found


def write(lab: Lab, name: str, text: str) -> None:
    path = lab.inventory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def manifest(lab: Lab, job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((lab.runs_dir / job / "manifest.json").read_text())
    return found


def test_the_environment_is_merged_over_all_levels(local_lab: Labs, script: str) -> None:
    lab = local_lab()
    write(
        lab,
        "group_vars/all/script.yml",
        "train_job_environment: {FROM_ALL: 010, FROM_LEVEL: all, FROM_X: '{{ 6 * 7 }}'}\n",
    )
    # A value that is a template as a whole, and a group in which all variables are commented out.
    write(lab, "group_vars/worker.yml", "train_job_environment: '{{ {\"FROM_GROUP\": 1.50} }}'\n")
    write(lab, "host_vars/worker0.yml", "train_job_environment:\n  # FROM_NOWHERE: 1\n")
    write(
        lab,
        "host_vars/worker1.yml",
        "train_job_environment:\n"
        "  {FROM_HOST: 2024-01-01, FROM_LEVEL: host, CUDA_VISIBLE_DEVICES: -1}\n",
    )
    secrets = lab.runs_dir.parent / "secrets.yml"
    secrets.write_text("train_job_environment: {FROM_FILE: 1.10, FROM_LEVEL: '{{ x }}'}\n")
    more = ("-e", f"@{secrets}", "-e", '{"train_job_environment": {"FROM_E": 1e-4}}')
    done = lab.run("--script", script, "--job", "merged", *more)
    assert done.code == 0, done.error
    common = {
        **{"FROM_ALL": "010", "FROM_X": "42", "FROM_GROUP": "1.5", "FROM_E": "1e-4"},
        **{"FROM_FILE": "1.10", "FROM_LEVEL": "{{ x }}"},
    }
    assert got(lab, "merged")["environment"] == common
    assert got(lab, "merged", "worker-1")["environment"] == {**common, "FROM_HOST": "2024-01-01"}
    saved = manifest(lab, "merged")
    assert saved["environment_names"] == sorted([*common, "CUDA_VISIBLE_DEVICES", "FROM_HOST"])
    assert saved["environment_differs"] == ["CUDA_VISIBLE_DEVICES", "FROM_HOST"]
    assert saved["hosts"]["worker1"]["gpus_wanted"] is None
    assert "2024" not in json.dumps(saved["environment_differs"])


def test_ansible_playbook_merges_all_of_its_extra_variables(local_lab: Labs, script: str) -> None:
    lab = local_lab(worker=1)
    write(lab, "group_vars/worker.yml", "train_job_environment: {FROM_GROUP: g, FROM_LEVEL: g}\n")
    first = '{"train_job_environment": {"FROM_ONE": 1, "FROM_LEVEL": 1}}'
    second = '{"train_job_environment": {"FROM_TWO": 2, "FROM_LEVEL": 2}}'
    more = ("-e", first, "-e", second)
    done = lab.playbook("train.yml", *more, train_job_script=script, train_job_id="direct")
    assert done.returncode == 0, done.stdout
    assert got(lab, "direct")["environment"] == {
        **{"FROM_GROUP": "g", "FROM_ONE": "1", "FROM_TWO": "2", "FROM_LEVEL": "2"}
    }


ARGUMENTS = [
    *("--fmt", '{{ "%04d" }}', "--tpl", "{{ item }}", "{% raw %}x{% endraw %}", "{# c #}", "{{"),
    *("a\\b\\n", "two\nlines\t", "ü😀\u2028", "", "!unsafe x", "yes", "1e3", "null", "010", "[1]"),
    *("it's", '"q"', "$HOME `x` *", "#jinja2:variable_start_string:'[%'", "\x1b[1m", "-e", "@file"),
]


def test_arguments_and_variables_arrive_as_they_are(local_lab: Labs, script: str) -> None:
    lab = local_lab(worker=1)
    environment = {f"FROM_{n}": text for n, text in enumerate(ARGUMENTS)}
    variables = {"train_job_environment": environment}
    done = lab.run("--script", script, "--job", "data", arguments=ARGUMENTS, **variables)
    assert done.code == 0, done.error
    assert got(lab, "data") == {"args": ARGUMENTS, "environment": environment}
    assert manifest(lab, "data")["arguments"] == ARGUMENTS

    # Another control node, which has no files of the job, restarts it.
    lab.runs_dir = lab.runs_dir.with_name("other")
    given = ["-i", str(lab.inventory), "-e", json.dumps(lab.given({}))]
    words = ("attach", "restart")
    for command in words:
        ended = run(*_train(command), "data", *given)
        assert ended.returncode == 0, ended.stderr + ended.stdout
    assert manifest(lab, "data")["attempt"] == 2
    assert got(lab, "data") == {"args": ARGUMENTS, "environment": environment}


@pytest.mark.soak
def test_the_folder_of_results_is_the_inventorys(local_lab: Labs, script: str) -> None:
    """Every command uses that folder, unless ``-e`` sets another one."""
    lab = local_lab(worker=1)
    results = lab.inventory.parent / "results of all"
    write(
        lab,
        "group_vars/all/runs.yml",
        "train_job_runs_dir: '{{ inventory_dir }}/../results of all'\n",
    )
    given = ["-i", str(lab.inventory), "-e", json.dumps(lab.variables)]
    words = ("--script", script, "--job", "there")
    done = run(*_train("run"), *given, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads((results / "there/result.json").read_text())["state"] == "completed"
    for command in ("status", "report", "attach", "logs"):
        ended = run(*_train(command), "there", *given)
        assert ended.returncode == 0, ended.stderr + ended.stdout
    assert run(*_train("report"), "there", *given).stdout.strip().startswith(str(results))
    assert lab.run("--script", script, "--job", "elsewhere").code == 0
    assert (lab.runs_dir / "elsewhere/result.json").exists()

    write(lab, "host_vars/worker0.yml", "train_job_runs_dir: /other\n")
    hosts = json.loads((lab.inventory / "hosts.yml").read_text())
    hosts["all"]["children"]["worker"]["hosts"]["worker1"] = {"train_job_port": 1}
    (lab.inventory / "hosts.yml").write_text(json.dumps(hosts))
    refused = run(*_train("run"), *given, *words)
    assert refused.returncode == 2
    assert "train_job_runs_dir must be the same for the whole gang" in refused.stderr
    assert "/other on worker0" in refused.stderr


def test_the_script_may_be_set_in_the_inventory(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "main.py").touch()
    (tmp_path / "mine/requirements.txt").write_text("idna\n")
    (tmp_path / "lab/group_vars/all").mkdir(parents=True)
    (tmp_path / "lab/hosts").write_text("a ansible_connection=local\nb ansible_connection=local\n")
    path = tmp_path / "lab/group_vars/all/job.yml"
    path.write_text('train_job_script: "{{ inventory_dir }}/../mine/main.py"\n')
    given: dict[str, Any] = {
        "inventory": tmp_path / "lab",
        "variables": {"train_job_runs_dir": str(tmp_path / "runs")},
    }
    job = Job.create(requirements="auto", **given)
    assert job.name.startswith("mine-")
    assert job.variables["train_job_requirements"] == f"{tmp_path}/mine/requirements.txt"
    job.close()
    chosen = Job.create(tmp_path / "other", **given)
    assert chosen.name.startswith("other-")
    chosen.close()
    path.write_text('train_job_script: "/{{ inventory_hostname }}/main.py"\n')
    with pytest.raises(UserError, match=r"differs between hosts: /a/main\.py on a; /b/"):
        Job.create(**given)


def _train(command: str) -> list[str]:
    return [sys.executable, "-m", "train", command]


def test_each_rank_has_the_arguments_of_its_host(local_lab: Labs, script: str) -> None:
    lab = local_lab()
    write(lab, "group_vars/worker.yml", "train_job_args: --rank any --root {{ train_job_root }}\n")
    write(lab, "host_vars/worker1.yml", "train_job_args: [--rank, 1, '{{ inventory_hostname }}']\n")
    done = lab.run("--script", script, "--job", "each")
    assert done.code == 0, done.error
    own = ["--rank", "1", "worker1"]
    common = ["--rank", "any", "--root", str(lab.root)]
    saved = manifest(lab, "each")
    assert (saved["arguments"], saved["rank_arguments"]) == (common, {"worker1": own})
    assert got(lab, "each")["args"] == common
    assert got(lab, "each", "worker-1")["args"] == own
    assert "arguments on worker1" in (lab.runs_dir / "each/report.html").read_text()
    # A restart uses the arguments of the start.
    write(lab, "host_vars/worker1.yml", "train_job_args: [--rank, 2]\n")
    given = ["-i", str(lab.inventory), "-e", json.dumps(lab.given({}))]
    again = run(*_train("restart"), "each", *given)
    assert again.returncode == 0, again.stderr
    assert got(lab, "each", "worker-1")["args"] == own


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    (
        {
            "train_job_environment": {"DEBUG": True, "EMPTY": None, "LIST": [1], "TEXT": "hidden"},
            "train_job_args": "--steps '3",
            "train_job_port": "abc",
            "train_job_min_workers": "many",
        },
        [
            "train_job_environment of worker0, worker1 sets DEBUG to a boolean",
            "sets EMPTY to null",
            "sets LIST to a list",
            "train_job_args of worker0, worker1 ",
            "cannot be split like a shell command (No closing quotation)",
            'train_job_port of worker0, worker1 is a string, "abc"',
            'train_job_min_workers of worker0, worker1 is a string, "many"',
        ],
    ),
    (
        {"train_job_args": {"a": "b"}, "train_job_environment": {"A=B": 1}, "train_job_grace": -1},
        [
            "train_job_args",
            "expected a list or a string",
            "'A=B'",
            "expected a number of 0 or more",
        ],
    ),
]


@pytest.mark.parametrize(
    ("case", "way"), [(0, "-e"), (0, "file"), (0, "group_vars"), (0, "ansible-playbook"), (1, "-e")]
)
def test_wrong_types_are_refused_by_name_whatever_their_source(
    local_lab: Labs, script: str, case: int, way: str
) -> None:
    lab = local_lab()
    variables, messages = REFUSED[case]
    if way == "group_vars":
        for path in lab.inventory.glob("hosts.yml"):  # ports of hosts would take precedence
            path.write_text(path.read_text().replace("train_job_port", "other_port"))
        write(lab, "group_vars/all/wrong.yml", yaml.safe_dump(variables))
    if way == "file":
        path = lab.runs_dir.parent / "wrong.yml"
        path.write_text(yaml.safe_dump(variables))
        done = lab.run("--script", script, "-e", f"@{path}")
    elif way == "ansible-playbook":
        playbook = lab.playbook("train.yml", train_job_script=script, **variables)
        assert playbook.returncode == 2
    else:
        done = lab.run("--script", script, **(variables if way == "-e" else {}))
    if way == "ansible-playbook":
        shown = playbook.stdout.replace("\\", "")
    else:
        assert done.code == 2
        shown = done.result["message"]
        assert ("wrong.yml:" in shown) == (way == "group_vars")
    for message in messages:
        assert message in shown, shown
    assert "hidden" not in shown
    assert not (lab.root / "jobs").exists()


def test_what_holds_for_the_gang_is_compared(local_lab: Labs, script: str) -> None:
    lab = local_lab()
    wrong = {"train_job_seed": 5, "train_job_keras": 3, "train_job_max_runtime": 4444}
    fine = {"train_job_grace": 33, "train_job_hang_min_seconds": 77}
    write(lab, "host_vars/worker1.yml", yaml.safe_dump({**wrong, **fine}))
    done = lab.run("--script", script)
    assert done.code == 2
    for name, value in wrong.items():
        assert f"{name} must be the same for the whole gang" in done.result["message"]
        assert (
            f"{value} on worker1 ({lab.inventory}/host_vars/worker1.yml:" in done.result["message"]
        )
    for name in fine:
        assert name not in done.result["message"]


def test_dates_sets_and_binary_data_in_a_file_of_variables(local_lab: Labs, script: str) -> None:
    lab = local_lab(worker=1)
    path = lab.runs_dir.parent / "variables.yml"
    path.write_text(
        "train_job_environment: {FROM_DATE: 2024-01-01, FROM_TIME: 2024-01-01 10:00:00, NO: 1}\n"
        "train_job_args: [--since, 2024-02-03, 010, '{{ x }}']\n"
        "a_date: 2024-01-01\na_set: !!set {a, b}\nsome_bytes: !!binary aGVsbG8=\n"
    )
    done = lab.run("--script", script, "--job", "dates", "-e", f"@{path}")
    assert done.code == 0, done.error
    assert got(lab, "dates") == {
        "args": ["--since", "2024-02-03", "010", "{{ x }}"],
        "environment": {"FROM_DATE": "2024-01-01", "FROM_TIME": "2024-01-01 10:00:00"},
    }
    path.write_text("some_bytes: !!binary /w==\n")
    refused = lab.run("--script", script, "-e", f"@{path}")
    assert refused.code == 2
    assert "some_bytes is binary data" in refused.error
