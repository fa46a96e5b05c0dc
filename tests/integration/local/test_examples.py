"""The examples: each folder in examples/ with the command in its README, and those in docs/."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.job_folders import check_files
from tests.support.jobs import rank_pid, train
from tests.support.lab import CACHE, REPOSITORY, Lab, environment, free_port, run
from tests.support.training_ranks import Start, kill, run_gang
from tests.unit.test_docs import TRAINING, YOUR_SCRIPT, blocks
from train.cli.ansible_options import parse_variables
from train.cli.main import build_parser

EXAMPLES = REPOSITORY / "examples"
OLD = REPOSITORY / "tests/data/scripts/experimental/train_old.py"


def commands(name: str) -> list[list[str]]:
    """Return the words of each command in the README of an example."""
    text = "".join(blocks(EXAMPLES / name / "README.md", "sh"))
    lines = text.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def given(name: str) -> tuple[Path, dict[str, Any], list[str]]:
    """Return the script, its variables and its arguments from the first job in the README."""
    words = next(words for words in commands(name) if words[1:4] == ["-m", "train", "run"])
    cut = words.index("--") if "--" in words else len(words)
    args = build_parser().parse_args(words[3:cut])
    variables, _ = parse_variables(args.variables)
    return REPOSITORY / args.script, dict(variables), words[cut + 1 :]


def log_of(lab: Lab, name: str, task: str) -> str:
    return (lab.runs_dir / name / "logs" / f"{task}.log").read_text()


def with_free_ports(inventory: Path, folder: Path) -> Path:
    """Return a copy of an example's inventory with free ports."""
    copy = folder / inventory.name
    text = re.sub(r"(?<=train_job_port: )\d+", lambda _: str(free_port()), inventory.read_text())
    copy.write_text(text)
    return copy


#: Compares the data sets of two workers, each of which keeps its part of every batch.
ORDERS = """
import pathlib, cifar10, mnist
mnist.MNIST = pathlib.Path("/nowhere")
labels = mnist.mnist_data()[1], cifar10.load("")[0][1]
makers = lambda: mnist.mnist_dataset(600), lambda: cifar10.datasets("", 640)[0]
for expected, make in zip(labels, makers):
    one, other = ([n for _, batch in make().take(20) for n in batch.numpy()] for _ in range(2))
    assert one == other
    first, second = one[:len(expected)], one[len(expected):]
    assert first != second, "each epoch has another order"
    assert sorted(first) == sorted(second) == sorted(expected)
"""


@pytest.mark.tensorflow
def test_workers_that_share_batches_read_the_same_order(start: Start, tmp_path: Path) -> None:
    path = {"PYTHONPATH": f"{EXAMPLES}/mnist-fit:{EXAMPLES}/resnet56-cifar10"}
    rank = start(tmp_path, script=ORDERS, variables=path)
    assert rank.end() == 0, rank.said()


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


@pytest.mark.parametrize(
    ("name", "options", "first_log", "same_everywhere"),
    [
        (
            "keras3-jax",
            ["--epochs", "30", "--steps-per-epoch", "5"],
            r"Epoch (\d+)/30",
            r"SHA-256 of the weights, the same in every process: \w+",
        ),
        pytest.param(
            "jax-loop",
            ["--steps", "1500"],
            r"2 devices, from step (\d+)",
            r"sum of the norms of the weights, the same everywhere: [\d.]+",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_jax_resumes_after_a_worker_was_killed(
    *,
    name: str,
    options: list[str],
    first_log: str,
    same_everywhere: str,
    lab: Lab,
    jax_python: str,
    tmp_path: Path,
) -> None:
    script, variables, arguments = given(name)
    assert variables == {}
    running = lab.start(
        *("--job", "jax", "--framework", "jax", "--script", str(script)),
        arguments=[*arguments, *options],
        train_job_python=jax_python,
        train_job_max_restarts=1,
        train_job_restart_delay=0,
    )
    saved = lab.root / "jobs/jax/worker-0/checkpoints/state.npz"
    running.wait_for(lambda e: saved.exists())
    os.kill(rank_pid(lab.root, "jax", "worker-1"), signal.SIGKILL)
    done = running.end()
    assert done.code == 0, done.result
    assert lab.saved("jax")["attempts"] == 2
    assert int(re.findall(first_log, log_of(lab, "jax", "worker-1"))[0]) > 1
    logs = (log_of(lab, "jax", task) for task in ("worker-0", "worker-1"))
    first, second = (re.findall(same_everywhere, log) for log in logs)
    assert len(first) == 1
    assert first == second
    assert len([*(lab.runs_dir / "jax/model").iterdir()]) == 1
    manifest = json.loads((lab.runs_dir / "jax/manifest.json").read_text())
    assert manifest["framework"] == "jax"
    assert set(manifest["versions"]) >= {"jax", "jaxlib", "keras"}


def test_torch_ddp_chooses_its_gpu_before_the_processes_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = MagicMock()
    torch.distributed.init_process_group.side_effect = InterruptedError
    for name in ("torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data"):
        monkeypatch.setitem(sys.modules, name, torch)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(sys, "argv", ["main.py"])
    with pytest.raises(InterruptedError):
        runpy.run_path(str(EXAMPLES / "torch-ddp/main.py"))
    torch.device.assert_called_with("cuda", 1)
    torch.cuda.set_device.assert_called_once_with(torch.device.return_value)
    torch.distributed.init_process_group.assert_called_once_with("nccl")


def test_a_restart_of_jax_after_the_last_step_completes(jax_python: str, tmp_path: Path) -> None:
    for begun in (0, 3):
        words = [jax_python, str(EXAMPLES / "jax-loop/main.py"), "--steps", "3"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"from step {begun}\n" in done.stdout


@pytest.mark.soak
@pytest.mark.tensorflow
def test_resnet56_cifar10(start: Start, tmp_path: Path) -> None:
    """It runs in one process; tests/integration/ssh/test_ssh_jobs.py runs it as a job."""
    # The unpacked published files: five batches to train on, one to test on.
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
    for words in (" - accuracy: ", " - val_accuracy: ", " - val_loss: "):
        assert words in rank.said()
    assert rank.said().endswith("loss and accuracy are not those of CIFAR-10\n")


@pytest.mark.soak
@pytest.mark.tensorflow
def test_one_host_gpus(lab: Lab, start: Start, tmp_path: Path) -> None:
    example, _, arguments = given("one-host-gpus")
    by_hand = {
        "script": (example / "main.py").read_text(),
        "variables": {"CUDA_VISIBLE_DEVICES": ""},
    }
    one = start(tmp_path / "one", "--gpus=1", "--epochs=1", **by_hand)
    uneven = start(tmp_path / "uneven", "--batch-size=65", **by_hand)
    lab.inventory = with_free_ports(example / "inventory.yml", tmp_path)
    done = lab.run("--job", "gpus", "--script", str(example), arguments=arguments)
    assert done.code == 0, done.result
    assert done.result["metrics"]["accuracy"] > 0.8
    shown = log_of(lab, "gpus", "worker-0")
    assert shown.endswith("loss and accuracy do not apply to real data\n")
    assert "MirroredStrategy on /device:CPU:0, /device:CPU:1" in shown
    assert (one.end(), uneven.end()) == (0, 2), one.said()
    assert "OneDeviceStrategy on /device:CPU:1" in one.said()
    assert "--batch-size 65 cannot be shared evenly by 2 replicas" in uneven.said()


@pytest.mark.tensorflow
def test_parameter_server(lab: Lab, start: Start, tmp_path: Path) -> None:
    """It runs without a job; test_local_jobs.py has a job whose servers end with the chief."""
    example, _, arguments = given("parameter-server")
    lab.inventory = with_free_ports(example / "inventory.yml", tmp_path)
    printed = train(*lab.words("tf-config"))
    assert printed.returncode == 0, printed.stderr
    main, ranks = (example / "main.py").read_text(), {}
    for found in map(json.loads, printed.stdout.splitlines()):
        folder = tmp_path / found["host"]
        variables = {
            "TF_CONFIG": json.dumps(found["TF_CONFIG"]),
            # With a single thread, a chief and its parameter servers hang.
            "TF_NUM_INTEROP_THREADS": "4",
            "PYTHONPATH": "",
        }
        ranks[folder.name] = start(folder, *arguments, script=main, variables=variables)
    chief = ranks.pop("chief-0")
    assert [*ranks] == ["worker-0", "worker-1", "ps-0"]
    assert chief.end() == 0, chief.said()
    kill([*ranks.values()])
    assert re.search(r"epoch 5: loss 0\.000", chief.said())
    assert chief.said().endswith("the loss does not apply to real data\n")


@pytest.fixture(scope="session")
def tfds_packages() -> Path:
    """Install TensorFlow Datasets with its packages like the README; return the folder."""
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


@pytest.mark.soak
@pytest.mark.tensorflow
def test_tfds(start: Start, tfds_packages: Path, tmp_path: Path) -> None:
    example, wanted, arguments = given("tfds")
    assert [*wanted["train_job_environment"]] == ["PYTHONPATH"]
    path = {"PYTHONPATH": f"{example}:{tfds_packages}"}
    prepare, main = ((example / name).read_text() for name in ("prepare.py", "main.py"))
    folder = str(tmp_path / "data")
    prepared = start(tmp_path, folder, script=prepare, variables=path)
    assert prepared.end() == 0, prepared.said()
    words = (*arguments, "--data-dir", folder)
    first, _ = run_gang(start, tmp_path, *words, script=main, variables={0: path, 1: path})
    assert float(re.findall(r" - accuracy: ([0-9.]+)", first.said())[-1]) > 0.8


@pytest.mark.soak
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


@pytest.mark.soak
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


@pytest.mark.soak
@pytest.mark.tensorflow
def test_the_example_of_an_own_network_trains(lab: Lab, tmp_path: Path) -> None:
    """The network trains in a job of the project's own program."""
    module = tmp_path / "mine.py"
    module.write_text(blocks(TRAINING, "python")[0])
    options = ["--data=mine.py", "--model=mine.py", "--batch-size=100", "--epochs=1"]
    done = lab.run("--job", "mine", "--include", str(module), arguments=options)
    assert done.code == 0, done.result
    # Random guesses would reach log 2.
    assert done.result["metrics"]["test_loss"] < 0.69
    assert len({rank["weights_sha256"] for rank in lab.saved("mine")["ranks"]}) == 1
    assert (lab.runs_dir / "mine/model/model.keras").is_file()
    checkpoints = lab.root.glob("jobs/mine/*/checkpoints/*")
    assert [path.name for path in checkpoints] == ["ckpt-20.npz"]
    check_files(lab, "mine")
    manifest = json.loads((lab.runs_dir / "mine/manifest.json").read_text())
    assert manifest["versions"]["tensorflow"] == ["2.21.0"]
    assert set(manifest["git"]) == {"commit", "clean"}


@pytest.mark.soak
@pytest.mark.tensorflow
def test_the_script_that_was_taken_to_several_machines(start: Start, tmp_path: Path) -> None:
    ranks = run_gang(start, tmp_path, script=blocks(YOUR_SCRIPT, "python")[0])
    for rank in ranks:
        assert "Epoch 2/2" in rank.said()
        assert " - accuracy: " in rank.said()
        assert (rank.folder / "model/model.keras").is_file()


@pytest.mark.tensorflow
def test_an_old_script_with_the_experimental_strategy(start: Start, tmp_path: Path) -> None:
    path = {"PYTHONPATH": str(OLD.parent)}
    ranks = run_gang(start, tmp_path, script=OLD.read_text(), variables={0: path, 1: path})
    for rank in ranks:
        assert "Epoch 2/2" in rank.said()
        assert " - mae: " in rank.said()
