"""The training program's data: folders of images, TFRecord files, and who reads them."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import free_port
from tests.support.training_script import inside, np, tf
from tests.support.training_sources import about, fetch, open_data, png, refusal


def fetch_error(split: Any, *indices: int) -> str:
    """Return why examples cannot be fetched."""
    with pytest.raises(tf.errors.OpError) as failed:
        fetch(split, *indices)
    return str(failed.value)


def write_images(folder: Path) -> Path:
    """Write red cats, green dogs and a blue emu, of two sizes."""
    kinds = {"cat": (255, 0, 0), "dog": (0, 255, 0), "emu": (0, 0, 255)}
    for part, names in (("train", ("cat", "dog", "emu")), ("test", ("dog", "emu"))):
        for name in names:
            (folder / part / name).mkdir(parents=True)
            for number in range(2):
                image = png(8 + 5 * number, 8, kinds[name])
                (folder / part / name / f"{number}.png").write_bytes(image)
    (folder / "train" / ".DS_Store").write_bytes(b"x")
    (folder / "train" / "cat" / ".hidden").write_bytes(b"x")
    return folder


@inside
def test_images_are_classes_by_folder(tmp_path: Path) -> None:
    one, two = (write_images(tmp_path / name) for name in ("one", "two"))
    prints = []
    for folder in (one, two):
        found = open_data("images", folder)
        assert about(found) == ([6, 4], [8, 8, 3], 3)
        images, labels = fetch(found.train, 5, 0, 3)
        assert (images.dtype, labels.dtype, labels.tolist()) == (np.float32, np.int64, [2, 0, 1])
        for image, color in zip(images, ([0, 0, 1], [1, 0, 0], [0, 1, 0]), strict=True):
            np.testing.assert_allclose(image, np.broadcast_to(color, (8, 8, 3)), atol=1e-6)
        assert fetch(found.test, 0, 3)[1].tolist() == [1, 2]
        prints.append(found.fingerprint)
    assert prints[0] == prints[1]
    small = open_data("images", one, image_size=5)
    assert about(small)[1] == [5, 5, 3]
    assert fetch(small.train)[1].tolist() == []

    (two / "train/cat/0.png").write_bytes(png(8, 8, (254, 0, 0)))
    assert open_data("images", two).fingerprint != prints[0]
    # 0 takes the size of the first one, which here is neither square nor that of the others.
    (one / "train/cat/0.png").write_bytes(png(7, 9, (255, 0, 0)))
    as_first = open_data("images", one, image_size=0)
    assert about(as_first)[1] == [9, 7, 3]
    red = np.broadcast_to([1, 0, 0], (2, 9, 7, 3))
    np.testing.assert_allclose(fetch(as_first.train, 0, 1)[0], red, atol=1e-6)


@inside
def test_other_formats_are_decoded_and_pixels_stay(tmp_path: Path) -> None:
    folder = write_images(tmp_path) / "train/cat"
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    (folder / "0.png").write_bytes(tf.io.encode_png(pixels).numpy())
    (folder / "1.png").unlink()
    grey = tf.io.encode_jpeg(np.full((8, 8, 1), 51, np.uint8))
    (folder / "1.JPEG").write_bytes(grey.numpy())
    images, _ = fetch(open_data("images", tmp_path).train, 0, 1)
    assert (images[0] == pixels * np.float32(1 / 255)).all()
    np.testing.assert_allclose(images[1], 0.2, atol=0.01)


@inside
def test_wrong_image_folders_are_refused(tmp_path: Path) -> None:
    black = png(8, 8, (0, 0, 0))
    cases = [
        ("train/cat/notes.txt", b"x", "notes.txt is none of .png, .jpg, .jpeg, .gif, .bmp"),
        ("train/notes.png", b"x", "train/notes.png is no folder of a class"),
        ("train/fox", None, "train/fox is empty"),
        ("train/cat/0.png", b"", "train/cat/0.png is empty"),
        ("test/fox/0.png", black, "test has classes that train has not: ['fox']"),
    ]
    for number, (name, content, error) in enumerate(cases):
        path = write_images(tmp_path / str(number)) / name
        path.parent.mkdir(exist_ok=True)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
        assert error in refusal("images", tmp_path / str(number))
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path}/empty/train: cannot be read: No such file" in refusal(
        "images", tmp_path / "empty"
    )
    for kind, content in (("cut", png(64, 64, (1, 2, 3))[:-30]), ("foreign", b"<html>")):
        path = write_images(tmp_path / kind) / "train/cat/0.png"
        path.write_bytes(content)
        error = fetch_error(open_data("images", tmp_path / kind).train, 1, 0)
        assert "examples that cannot be read or decoded" in error
        assert str(path) in error
        assert "1.png" not in error


def example(label: Any, **fields: Any) -> bytes:
    """Return an example of bytes, lists of floats and whole numbers."""
    made = tf.train.Example()
    for name, value in {**fields, "label": label}.items():
        kind = made.features.feature[name]
        if isinstance(value, bytes):
            kind.bytes_list.value.append(value)
        elif isinstance(value, list):
            kind.float_list.value.extend(value)
        else:
            kind.int64_list.value.append(value)
    return bytes(made.SerializeToString())


def write(path: Path, examples: Sequence[bytes], **options: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(**options)) as writer:
        for made in examples:
            writer.write(made)


NINES = {"x": [9.0] * 4}


def write_vectors(folder: Path, sidecar: str, classes: int = 4) -> Path:
    """Write three examples to train on, none of them in the first file, and one for the test."""
    for shard in range(3):
        vectors = ([float(shard), float(n), 0.5, 1.0] for n in range(shard))
        made = [example((3 * shard + n) % classes, x=x) for n, x in enumerate(vectors)]
        write(folder / f"train-{shard}.tfrecord", made)
    write(folder / "test.tfrecord", [example(3, **NINES)])
    (folder / "features.json").write_text(sidecar)
    return folder


@inside
def test_tfrecords_of_floats_and_of_images(tmp_path: Path) -> None:
    vectors = open_data(
        "tfrecord", write_vectors(tmp_path / "x", '{"classes": 4, "shape": [2, 2]}')
    )
    assert about(vectors) == ([3, 1], [2, 2], 4)
    features, labels = fetch(vectors.train, 2, 0, 1)
    assert labels.tolist() == [3, 3, 2]
    assert features[:, 0].tolist() == [[2, 1], [1, 0], [2, 0]]
    assert features[:, 1].tolist() == [[0.5, 1]] * 3
    assert (fetch(vectors.test, 0)[0] == np.full((1, 2, 2), 9)).all()

    image = tf.io.encode_png(np.full((8, 8, 3), 51, np.uint8)).numpy()
    for part in ("train", "test"):
        made = [example([float(n), 0.5], image=image) for n in range(4)]
        write(tmp_path / f"image/{part}.tfrecord", made)
    (tmp_path / "image/features.json").write_text("{}")
    images = open_data("tfrecord", tmp_path / "image")
    assert about(images)[1:] == ([8, 8, 3], None)
    features, labels = fetch(images.train, 3)
    assert labels.tolist() == [[3, 0.5]]
    assert (features.dtype, labels.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(features, np.full((1, 8, 8, 3), 0.2), atol=1e-6)


@inside
def test_wrong_tfrecords_are_refused(tmp_path: Path) -> None:
    good = '{"classes": 4, "shape": [2, 2]}'

    def changed(name: str, content: bytes) -> Path:
        folder = write_vectors(tmp_path / str(len(list(tmp_path.iterdir()))), good)
        (folder / name).write_bytes(content)
        return folder

    second = (write_vectors(tmp_path / "good", good) / "train-2.tfrecord").read_bytes()
    middle = len(second) // 2
    packed = write_vectors(tmp_path / "packed", good)
    write(packed / "test.tfrecord", [example(3, **NINES)], compression_type="GZIP")
    none = tmp_path / "none"
    for part in ("train", "test"):
        write(none / f"{part}.tfrecord", [example(1, y=[1.0])])
    (none / "features.json").write_text("{}")
    crc = second[: middle + 9] + b"x" + second[middle + 10 :]
    cases = {
        "cut short in the record at byte": changed("train-2.tfrecord", second[:-3]),
        f"train-2.tfrecord: damaged, or no TFRecord file: the CRC at byte {middle}": changed(
            "train-2.tfrecord", crc
        ),
        "the CRC at byte 0 is wrong": changed("test.tfrecord", b"<html>" * 9),
        "test.tfrecord: cut short in the record at byte 0": changed("test.tfrecord", b"1"),
        'write {"classes": N} to': changed("features.json", b'{"shape": [2, 2]}'),
        "has 4 floats in x, and the shape is [5]": changed(
            "features.json", b'{"classes": 4, "shape": [5]}'
        ),
        'only "shape" and "classes" may stand in it': changed("features.json", b'{"a": 1}'),
        "features.json: damaged": changed("features.json", b"{"),
        "classes 0 is no whole number": changed("features.json", b'{"classes": 0}'),
        "test.tfrecord: compressed": packed,
        "neither image (bytes) nor x": none,
        "holds no train*.tfrecord": tmp_path,
    }
    for error, folder in cases.items():
        assert error in refusal("tfrecord", folder)
    # What shows only when a record is read is named then.
    content = second[:-9] + bytes([second[-9] ^ 1]) + second[-8:]
    damaged = changed("train-2.tfrecord", content)
    error = fetch_error(open_data("tfrecord", damaged).train, 2, 0)
    assert f"{damaged}/train-2.tfrecord at byte {middle}" in error
    assert "train-1" not in error
    few = changed("features.json", b'{"classes": 3, "shape": [2, 2]}')
    error = fetch_error(open_data("tfrecord", few).train, 2, 0)
    assert f"{few}/train-2.tfrecord at byte" in error


SERVER = """
import json, sys
import tensorflow as tf
cluster, job = json.loads(sys.argv[1]), sys.argv[2]
tf.distribute.Server(cluster, job_name=job, task_index=0, protocol="grpc").join()
"""


@inside
def test_worker_of_parameter_servers_fetches_the_same(tmp_path: Path) -> None:
    """The pipeline runs in the worker's process, which has none of this Python."""
    images = write_images(tmp_path / "images")
    vectors = write_vectors(tmp_path / "x", json.dumps({"classes": 4}))
    cluster = {job: [f"localhost:{free_port()}"] for job in ("chief", "ps", "worker")}
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", SERVER, json.dumps(cluster), job],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for job in ("ps", "worker")
    ]
    try:
        opened = [open_data("digits"), open_data("synthetic")]
        opened += [open_data("images", images), open_data("tfrecord", vectors)]
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        for found in opened:
            check_worker(coordinator, found.train.fetch)
    finally:
        for server in servers:
            server.kill()


def check_worker(coordinator: Any, fetch: Callable[[Any], Any]) -> None:
    """Check that a worker fetches three examples as this process does."""

    def pipeline() -> Any:
        return tf.data.Dataset.range(3).batch(3).map(fetch).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(pipeline))
    # Its function is another for each data set.
    features, labels = coordinator.schedule(tf.function(lambda of: next(of)), (iterator,)).fetch()
    own_features, own_labels = fetch(tf.range(3, dtype=tf.int64))
    assert (features == own_features.numpy()).all()
    assert (labels == own_labels.numpy()).all()


class Features(dict[str, Any]):
    """How the package describes and reads an example."""

    def deserialize_example(self, record: Any) -> dict[str, Any]:
        kinds = {"image": tf.string, "label": tf.int64}
        specs = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
        parsed = tf.io.parse_single_example(record, specs)
        image = tf.io.decode_image(parsed["image"], channels=3, expand_animations=False)
        return {"image": image, "label": parsed["label"]}


def install_package(folder: Path) -> None:
    """Have what is used of tensorflow_datasets, over TFRecord files that are written here."""
    splits = {}
    for part, count in (("train", 7), ("validation", 4)):
        paths = [folder / f"own-{part}.tfrecord-{shard}-of-2" for shard in range(2)]
        for shard, path in enumerate(paths):
            pixels = [
                (number, np.full((4 + number % 2, 4, 3), number, np.uint8))
                for number in range(shard, count, 2)
            ]
            write(path, [example(n % 3, image=tf.io.encode_png(of).numpy()) for n, of in pixels])
        splits[part] = types.SimpleNamespace(filepaths=[str(path) for path in paths])
    info = types.SimpleNamespace(
        supervised_keys=("image", "label"),
        file_format=types.SimpleNamespace(value="tfrecord"),
        splits=splits,
        features=Features(
            image=types.SimpleNamespace(shape=(None, None, 3)),
            label=types.SimpleNamespace(num_classes=3),
        ),
    )

    def builder(name: str, data_dir: str) -> Any:
        if name == "unknown":
            raise ValueError("Dataset unknown not found.\nDid you mean ...")
        return types.SimpleNamespace(info=info, is_prepared=lambda: name == "own")

    sys.modules["tensorflow_datasets"] = types.SimpleNamespace(builder=builder)  # type: ignore[assignment]


@inside
def test_prepared_data_sets_of_the_package_are_read_by_number(tmp_path: Path) -> None:
    missing = refusal("tfds:mnist", tmp_path)
    assert "tensorflow_datasets cannot be imported" in missing
    assert "tensorflow_extra_requirements" in missing
    install_package(tmp_path / "own")
    own = open_data("tfds:own", tmp_path, image_size=0)
    assert about(own) == ([7, 4], [4, 4, 3], 3)
    # The first file has 0, 2, 4 and 6; the second one the others, of another height.
    images, labels = fetch(own.train, 0, 1, 6)
    assert labels.tolist() == [0, 2, 2]
    assert fetch(own.test, 3)[1].tolist() == [0]
    assert images[:, 3, 3, 0] == pytest.approx(np.array([0, 2, 5]) / 255)
    assert refusal("tfds:unknown", tmp_path) == (
        f"tfds:unknown in {tmp_path} cannot be opened: Dataset unknown not found."
    )
    unprepared = refusal("tfds:later", tmp_path)
    assert f"it is not prepared in {tmp_path}: run `tfds build later" in unprepared
