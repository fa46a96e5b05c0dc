"""The examples: each folder of examples/ by the command of its README, and those of the docs."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import rank_pid, write_script
from tests.support.lab import CACHE, REPOSITORY, Lab, environment, free_port, run
from tests.support.training_ranks import Start
from tests.unit.test_docs import TRAINING, YOUR_SCRIPT, blocks
from train.cli.ansible_options import parse_variables
from train.cli.main import build_parser

EXAMPLES = REPOSITORY / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
#: Those that are given to `python -m train run`.
SCRIPTS = [name for name in NAMES if name not in ("notebook", "own-playbook")]


def commands(name: str) -> list[list[str]]:
    """Return the words of each command in the README of an example."""
    text = "".join(blocks(EXAMPLES / name / "README.md", "sh"))
    lines = text.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def given(name: str) -> tuple[Path, dict[str, Any], list[str]]:
    """Return script, variables and the script's arguments of the first job in the README."""
    words = next(words for words in commands(name) if words[1:4] == ["-m", "train", "run"])
    cut = words.index("--") if "--" in words else len(words)
    args = build_parser().parse_args(words[3:cut])
    variables, _ = parse_variables(args.variables)
    return REPOSITORY / args.script, dict(variables), words[cut + 1 :]


def job(lab: Lab, name: str, *small: str, **variables: Any) -> dict[str, Any]:
    """Run the job of the README, with more arguments that make it small; return its result."""
    script, wanted, arguments = given(name)
    words = ("--job", name, "--script", str(script))
    done = lab.run(*words, arguments=[*arguments, *small], **{**wanted, **variables})
    assert done.code == 0, done.result
    return lab.saved(name)


def log_of(lab: Lab, name: str, task: str) -> str:
    return (lab.runs_dir / name / "logs" / f"{task}.log").read_text()


def with_free_ports(inventory: Path, folder: Path) -> Path:
    """Return a copy of an example's inventory, with ports that nobody has."""
    copy = folder / inventory.name
    text = re.sub(r"(?<=train_job_port: )\d+", lambda _: str(free_port()), inventory.read_text())
    copy.write_text(text)
    return copy


def test_every_example_has_a_readme_whose_commands_are_accepted() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == set(NAMES)
    for name in SCRIPTS:
        script, _, _ = given(name)
        assert (script / "main.py").is_file()


def test_the_scripts_import_nothing_of_this_project() -> None:
    paths = list(EXAMPLES.rglob("*.py"))
    assert len(paths) > len(SCRIPTS)
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {"train", "training", "host"} & {name.partition(".")[0] for name in names}


@pytest.mark.tensorflow
def test_mnist_fit_resumes_after_a_worker_was_killed(lab: Lab, tmp_path: Path) -> None:
    script, variables, arguments = given("mnist-fit")
    small = ("--epochs", "6", "--steps-per-epoch", "30", "--backup-dir", str(tmp_path / "backup"))
    running = lab.start(
        *("--job", "mnist", "--script", str(script)),
        arguments=[*arguments, *small],
        **{**variables, "train_job_max_restarts": 1, "train_job_restart_delay": 0},
    )
    running.wait_for(lambda e: e["event"] == "rank" and (e["progress"] or {}).get("epoch", 0) > 1)
    os.kill(rank_pid(tmp_path / "hosts", "mnist", "worker-1"), signal.SIGKILL)
    done = running.end()
    assert done.code == 0, done.result
    assert lab.saved("mnist")["attempts"] == 2
    shown = done.records("worker-1")
    assert len({record["step"] for record in shown if record.get("step")}) >= 3
    assert [shown[-1][key] for key in ("step", "epoch", "epochs")] == [180, 6, 6]
    assert done.result["metrics"]["accuracy"] > 0.5
    first = re.search(r"Epoch (\d)/6", log_of(lab, "mnist", "worker-1"))
    assert first is not None
    assert int(first[1]) > 1
    folder = lab.runs_dir / "mnist"
    assert (folder / "model/mnist.keras").is_file()
    assert list((folder / "tensorboard").rglob("events*"))
    others = tmp_path / "hosts/jobs/mnist/worker-1"
    assert not list(others.glob("tensorboard/**/events*"))
    assert not list(others.glob("model/*"))


@pytest.mark.tensorflow
def test_resnet56_cifar10(start: Start, tmp_path: Path) -> None:
    """As one process; tests/integration/ssh/test_ssh_jobs.py has it as a job."""
    # The published files, as tar unpacks them: five batches to train on, one to test on.
    script = """
import pickle, sys, cifar10, numpy as np
data = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
    with open(f"{sys.argv[1]}/cifar-10-batches-py/{name}", "wb") as stream:
        pickle.dump({b"labels": [3, 4], b"data": data}, stream)
(images, labels), (tests, _) = cifar10.load(sys.argv[1])
assert images.shape == (10, 32, 32, 3) and labels.tolist() == [3, 4] * 5, (images.shape, labels)
assert tests[1, 0, 5].tolist() == data[1, 5::1024].tolist(), tests[1, 0]
"""
    (tmp_path / "cifar-10-batches-py").mkdir()
    example, _, arguments = given("resnet56-cifar10")
    path = {"PYTHONPATH": str(example)}
    reading = start(tmp_path / "reading", str(tmp_path), script=script, variables=path)
    small = ("--depth", "8", "--steps-per-epoch", "3")
    main = (example / "main.py").read_text()
    rank = start(tmp_path / "rank", *arguments, *small, script=main, variables=path)
    assert (reading.end(), rank.end()) == (0, 0), reading.said() + rank.said()
    for words in ("synthetic", " - accuracy: ", " - val_accuracy: ", " - val_loss: "):
        assert words in rank.said()


@pytest.mark.tensorflow
def test_one_host_gpus(lab: Lab, start: Start, tmp_path: Path) -> None:
    example = EXAMPLES / "one-host-gpus"
    by_hand = {
        "script": (example / "main.py").read_text(),
        "variables": {"CUDA_VISIBLE_DEVICES": ""},
    }
    one = start(tmp_path / "one", "--gpus=1", "--epochs=1", **by_hand)
    uneven = start(tmp_path / "uneven", "--batch-size=65", **by_hand)
    lab.inventory = with_free_ports(example / "inventory.yml", tmp_path)
    assert job(lab, example.name)["metrics"]["accuracy"] > 0.8
    shown = log_of(lab, example.name, "worker-0")
    assert "MirroredStrategy on /device:CPU:0, /device:CPU:1" in shown
    assert (one.end(), uneven.end()) == (0, 2), one.said()
    assert "OneDeviceStrategy on /device:CPU:1" in one.said()
    assert "--batch-size 65 cannot be shared evenly by 2 replicas" in uneven.said()


@pytest.mark.tensorflow
def test_parameter_server(lab: Lab, tmp_path: Path) -> None:
    name = "parameter-server"
    lab.inventory = with_free_ports(EXAMPLES / name / "inventory.yml", tmp_path)
    result = job(lab, name)
    states = {rank["task"]: rank["phase"] for rank in result["ranks"]}
    assert states.pop("chief-0") == "completed"
    assert states == dict.fromkeys(["ps-0", "worker-0", "worker-1"], "stopped")
    assert re.search(r"epoch 5: loss 0\.000", log_of(lab, name, "chief-0"))


@pytest.fixture(scope="session")
def tfds_packages() -> Path:
    """TensorFlow Datasets with what it needs on top of TensorFlow, as the README installs it."""
    folder = CACHE / "tfds"
    if not (folder / "tensorflow_datasets").is_dir():
        words = next(words for words in commands("tfds") if words[1:4] == ["-m", "pip", "install"])
        target = words.index("--target") + 1
        part = folder.with_name("tfds.part")
        subprocess.run(
            [sys.executable, *words[1:target], str(part), *words[target + 1 :]],
            cwd=REPOSITORY,
            check=True,
        )
        part.replace(folder)
    return folder


@pytest.mark.tensorflow
def test_tfds(lab: Lab, start: Start, tfds_packages: Path, tmp_path: Path) -> None:
    path = {"PYTHONPATH": str(tfds_packages)}
    source = EXAMPLES / "tfds"
    prepared = start(
        tmp_path,
        str(tmp_path / "data"),
        script=(source / "prepare.py").read_text(),
        variables={"PYTHONPATH": f"{source}:{tfds_packages}"},
    )
    assert prepared.end() == 0, prepared.said()
    small = ("--data-dir", str(tmp_path / "data"))
    result = job(lab, "tfds", *small, train_job_environment=path)
    assert result["metrics"]["accuracy"] > 0.8


@pytest.mark.tensorflow
def test_custom_loop_in_the_notebook(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "notebook/train.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    script, wanted, _ = given("custom-loop")
    asked: dict[str, Any] = {}
    exec(cell.source, asked)
    assert (EXAMPLES / "notebook" / asked["script"]).resolve() == script
    assert {name: str(value) for name, value in asked["variables"].items()} == wanted
    cell.source += (
        f"\ninventory = {str(lab.inventory)!r}\nvariables.update({lab.given({})!r})"
        "\narguments = ['--epochs', '2', '--steps-per-epoch', '50']"
    )
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    place = {"metadata": {"path": str(EXAMPLES / "notebook")}}
    NotebookClient(notebook, timeout=300, resources=place).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any(re.search(r"^completed \{", output.get("text", ""), re.M) for output in shown)
    assert "application/vnd.plotly.v1+json" in shown[-1]["data"]

    (run_dir,) = lab.runs_dir.iterdir()
    assert lab.saved(run_dir.name)["metrics"]["accuracy"] > 0.8
    records = (run_dir / "progress/worker-0.jsonl").read_text().splitlines()
    assert json.loads(records[-1])["step"] == 100
    logs = (log_of(lab, run_dir.name, f"worker-{number}") for number in (0, 1))
    first, second = (re.findall(r"^sum of the norms .*: \d+\.\d+$", log, re.M) for log in logs)
    assert len(first) == 1
    assert first == second


@pytest.mark.tensorflow
def test_own_playbook(tf_python: str, tmp_path: Path) -> None:
    folder = EXAMPLES / "own-playbook"
    (words,) = [words for words in commands(folder.name) if "ansible-playbook" in words[0]]
    mine = f"train_job_root={tmp_path}/hosts train_job_lease_dir={tmp_path}/leases"
    inventory = with_free_ports(folder / "inventory.yml", tmp_path)
    done = run(
        *("ansible-playbook", *words[1:], "-i", str(inventory)),
        *("-e", f"{mine} train_job_python={tf_python}"),
        cwd=folder,
        env={name: value for name, value in environment().items() if name != "ANSIBLE_CONFIG"},
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (model,) = tmp_path.glob("runs/*/model/model.keras")
    assert str(model) in done.stdout


@pytest.mark.tensorflow
def test_the_example_of_an_own_network_trains(start: Start, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(blocks(TRAINING, "python")[0])
    options = ["--data=mine.py", "--model=mine.py", "--batch-size=100", "--epochs=1"]
    rank = start(tmp_path, *options)
    assert rank.end() == 0, rank.said()
    told = re.search(r"epoch 1/1: loss [0-9.]+, test_loss ([0-9.]+), test_accuracy", rank.said())
    # log 2 is what a coin would reach.
    assert told is not None, rank.said()
    assert float(told[1]) < 0.69, rank.said()
    assert (tmp_path / "model/model.keras").is_file()
    assert [path.name for path in tmp_path.glob("checkpoints/*")] == ["ckpt-20.npz"]


@pytest.mark.tensorflow
def test_the_script_that_was_taken_to_several_machines(lab: Lab, tmp_path: Path) -> None:
    script = write_script(tmp_path, blocks(YOUR_SCRIPT, "python")[0])
    done = lab.run("--job", "moved", "--script", script)
    assert done.code == 0, done.result
    assert "accuracy" in done.result["metrics"]
    assert done.records("worker-1")[-1]["step"] == 2 * (1000 // 64)
    assert (tmp_path / "runs/moved/model/model.keras").is_file()
