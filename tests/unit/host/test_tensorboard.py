"""The search for event files on a host, and TensorBoard, which shows them."""

from __future__ import annotations

import socket
from pathlib import Path

from train.host import tensorboard


def test_events_are_found_wherever_a_script_left_them(tmp_path: Path) -> None:
    for job, folder in (("one", "worker-0/tensorboard/train"), ("two", "chief-0/code/logs")):
        path = tmp_path / "jobs" / job / folder / f"events.out.tfevents.1.{job}"
        path.parent.mkdir(parents=True)
        path.touch()
    found = tensorboard.find_events({"root": str(tmp_path), "jobs": []})
    assert found["events"] == ["events.out.tfevents.1.one", "events.out.tfevents.1.two"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", found["port"]))
    for jobs in (["two"], ["two", "gone"], ["two", "../jobs/one"]):
        found = tensorboard.find_events({"root": str(tmp_path), "jobs": jobs})
        assert found["events"] == ["events.out.tfevents.1.two"]
    assert tensorboard.find_events({"root": str(tmp_path / "none"), "jobs": []})["events"] == []


def test_temporary_folders_of_keras_are_left_out(tmp_path: Path) -> None:
    for folder in ("train", "train/workertemp_1", "workertemp_2/train"):
        path = tmp_path / "jobs/one/worker-1" / folder / f"events.out.tfevents.{len(folder)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = tensorboard.find_events({"root": str(tmp_path), "jobs": []})
    assert found["events"] == ["events.out.tfevents.5"]
