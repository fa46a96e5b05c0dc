"""The training program's data: folders of images, TFRecord files, and who reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import free_port
from tests.support.training_sources import look, png, run_python

# ---------------------------------------------------------------------------------- images


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


@pytest.mark.tensorflow
def test_images_are_classes_by_folder(tf_python: str, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "one")
    again = write_images(tmp_path / "two")
    fetch = {"train": [5, 0, 3], "test": [0, 3]}
    first, second, none = look(
        tf_python,
        {"name": "images", "folder": folder, "fetch": fetch},
        {"name": "images", "folder": again, "fetch": fetch},
        {"name": "images", "folder": folder, "image_size": 5, "fetch": {"train": []}},
    )
    # 0 takes the size of the first one, which here is neither square nor that of the others.
    (folder / "train" / "cat" / "0.png").write_bytes(png(7, 9, (255, 0, 0)))
    asked = {"name": "images", "folder": folder, "image_size": 0, "fetch": {"train": [0, 1]}}
    (as_first,) = look(tf_python, asked)
    assert as_first["shape"] == [9, 7, 3]
    assert as_first["train"]["features"] == [[[pytest.approx([1, 0, 0])] * 7] * 9] * 2
    assert (first["sizes"], first["shape"], first["classes"]) == ([6, 4], [8, 8, 3], 3)
    assert first["train"]["labels"] == [2, 0, 1]
    assert first["train"]["types"] == ["float32", "int64"]
    colors = ([0, 0, 1], [1, 0, 0], [0, 1, 0])
    for image, color in zip(first["train"]["features"], colors, strict=True):
        assert image == [[pytest.approx(color)] * 8] * 8
    assert first["test"]["labels"] == [1, 2]
    assert second == first
    assert (none["shape"], none["train"]["labels"]) == ([5, 5, 3], [])

    path = again / "train" / "cat" / "0.png"
    path.write_bytes(png(8, 8, (254, 0, 0)))
    (changed,) = look(tf_python, {"name": "images", "folder": again})
    assert changed["fingerprint"] != first["fingerprint"]


@pytest.mark.tensorflow
def test_other_formats_are_decoded_and_pixels_stay(tf_python: str, tmp_path: Path) -> None:
    write_images(tmp_path)
    code = f"""
import numpy as np
import tensorflow as tf
folder = Path({str(tmp_path)!r}, "train", "cat")
pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
(folder / "0.png").write_bytes(tf.io.encode_png(pixels).numpy())
(folder / "1.png").unlink()
(folder / "1.JPEG").write_bytes(tf.io.encode_jpeg(np.full((8, 8, 1), 51, np.uint8)).numpy())
got = fetched(open_one("images", {str(tmp_path)!r}).train, [0, 1])["features"]
print(json.dumps([
    bool((np.array(got[0], np.float32) == pixels * np.float32(1 / 255)).all()),
    bool(np.allclose(got[1], 0.2, atol=0.01)),
]))
"""
    assert run_python(tf_python, code) == [True, True]


@pytest.mark.tensorflow
def test_wrong_image_folders_are_refused(tf_python: str, tmp_path: Path) -> None:
    def changed(name: str, path: str, content: bytes | None) -> dict[str, Any]:
        target = write_images(tmp_path / name) / path
        target.parent.mkdir(exist_ok=True)
        if content is None:
            target.mkdir()
        else:
            target.write_bytes(content)
        return {"name": "images", "folder": tmp_path / name, "fetch": {"train": [1, 0]}}

    (tmp_path / "empty").mkdir()
    cases = {
        "train/cat/notes.txt": (b"x", "notes.txt is none of .png, .jpg, .jpeg, .gif, .bmp"),
        "train/notes.png": (b"x", "train/notes.png is no folder of a class"),
        "train/fox": (None, "train/fox is empty"),
        "train/cat/0.png": (b"", "train/cat/0.png is empty"),
        "test/fox/0.png": (png(8, 8, (0, 0, 0)), "test has classes that train has not: ['fox']"),
    }
    wanted = [changed(str(n), path, case[0]) for n, (path, case) in enumerate(cases.items())]
    found = look(
        tf_python,
        *wanted,
        {"name": "images", "folder": tmp_path / "empty"},
        changed("cut", "train/cat/0.png", png(64, 64, (1, 2, 3))[:-30]),
        changed("foreign", "train/cat/0.png", b"<html>"),
    )
    for result, (_, error) in zip(found, cases.values(), strict=False):
        assert error in result["error"]
    assert f"{tmp_path}/empty/train: cannot be read: No such file" in found[-3]["error"]
    for result, name in ((found[-2], "cut"), (found[-1], "foreign")):
        error = result["train"]["error"]
        assert "examples that cannot be read or decoded" in error
        assert f"{tmp_path}/{name}/train/cat/0.png" in error
        assert "1.png" not in error


# ---------------------------------------------------------------------------------- TFRecord

WRITE = """
import tensorflow as tf

def example(label, **fields):
    made = tf.train.Example()
    for name, value in {**fields, "label": label}.items():
        kind = made.features.feature[name]
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], bytes):
            kind.bytes_list.value.extend(values)
        elif isinstance(values[0], float):
            kind.float_list.value.extend(values)
        else:
            kind.int64_list.value.extend(values)
    return made.SerializeToString()

def write(path, examples, **options):
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(**options)) as writer:
        for made in examples:
            writer.write(made)
"""


def write_records(python: str, folder: Path, sidecar: str, code: str) -> None:
    """Write TFRecord files to ``folder`` with ``write`` and ``example``."""
    start = f"folder = Path({str(folder)!r})\n"
    run_python(python, WRITE + start + code + "\nprint('null')")
    (folder / "features.json").write_text(sidecar)


VECTORS = """
for shard in range(3):
    made = [example((3 * shard + n) % 4, x=[float(shard), float(n), 0.5, 1.0])
            for n in range(shard)]
    write(folder / f"train-{shard}.tfrecord", made)
write(folder / "test.tfrecord", [example(3, x=[9.0] * 4)])
"""


@pytest.mark.tensorflow
def test_tfrecords_of_floats_and_of_images(tf_python: str, tmp_path: Path) -> None:
    write_records(tf_python, tmp_path / "x", '{"classes": 4, "shape": [2, 2]}', VECTORS)
    code = """
import numpy as np
png = tf.io.encode_png(np.full((8, 8, 3), 51, np.uint8)).numpy()
for part in ("train", "test"):
    write(folder / f"{part}.tfrecord", [example([float(n), 0.5], image=png) for n in range(4)])
"""
    write_records(tf_python, tmp_path / "image", "{}", code)
    vectors, images = look(
        tf_python,
        {"name": "tfrecord", "folder": tmp_path / "x", "fetch": {"train": [2, 0, 1], "test": [0]}},
        {"name": "tfrecord", "folder": tmp_path / "image", "fetch": {"train": [3]}},
    )
    assert (vectors["sizes"], vectors["shape"], vectors["classes"]) == ([3, 1], [2, 2], 4)
    assert vectors["train"]["labels"] == [3, 3, 2]
    assert vectors["train"]["features"] == [
        [[2, 1], [0.5, 1]],
        [[1, 0], [0.5, 1]],
        [[2, 0], [0.5, 1]],
    ]
    assert vectors["test"]["features"] == [[[9, 9], [9, 9]]]
    assert (images["shape"], images["classes"]) == ([8, 8, 3], None)
    assert images["train"]["labels"] == [[3, 0.5]]
    assert images["train"]["types"] == ["float32", "float32"]
    assert images["train"]["features"] == [[[pytest.approx([0.2] * 3)] * 8] * 8]


@pytest.mark.tensorflow
def test_wrong_tfrecords_are_refused(tf_python: str, tmp_path: Path) -> None:
    good = '{"classes": 4, "shape": [2, 2]}'
    write_records(tf_python, tmp_path / "good", good, VECTORS)
    packed = 'write(folder / "test.tfrecord", [example(3, x=[9.0] * 4)], compression_type="GZIP")'
    write_records(tf_python, tmp_path / "packed", good, VECTORS + packed)
    parts = """
for part in ("train", "test"):
    write(folder / f"{part}.tfrecord", [example(MADE)])
"""
    write_records(tf_python, tmp_path / "none", "{}", parts.replace("MADE", "1, y=[1.0]"))

    def changed(name: str, file: str, content: bytes) -> dict[str, Any]:
        (tmp_path / name).mkdir()
        for path in (tmp_path / "good").iterdir():
            (tmp_path / name / path.name).write_bytes(path.read_bytes())
        (tmp_path / name / file).write_bytes(content)
        return {"name": "tfrecord", "folder": tmp_path / name, "fetch": {"train": [2, 0]}}

    second = (tmp_path / "good" / "train-2.tfrecord").read_bytes()
    middle = len(second) // 2
    cases = {
        "cut short in the record at byte": changed("cut", "train-2.tfrecord", second[:-3]),
        f"train-2.tfrecord: damaged, or no TFRecord file: the CRC at byte {middle}": changed(
            "middle", "train-2.tfrecord", second[: middle + 9] + b"x" + second[middle + 10 :]
        ),
        "the CRC at byte 0 is wrong": changed("foreign", "test.tfrecord", b"<html>" * 9),
        "test.tfrecord: cut short in the record at byte 0": changed("t", "test.tfrecord", b"1"),
        'write {"classes": N} to': changed("classes", "features.json", b'{"shape": [2, 2]}'),
        "has 4 floats in x, and the shape is [5]": changed(
            "shape", "features.json", b'{"classes": 4, "shape": [5]}'
        ),
        'only "shape" and "classes" may stand in it': changed("key", "features.json", b'{"a": 1}'),
        "features.json: damaged": changed("json", "features.json", b"{"),
        "classes 0 is no whole number": changed("zero", "features.json", b'{"classes": 0}'),
        "test.tfrecord: compressed": {"name": "tfrecord", "folder": tmp_path / "packed"},
        "neither image (bytes) nor x": {"name": "tfrecord", "folder": tmp_path / "none"},
        "holds no train*.tfrecord": {"name": "tfrecord", "folder": tmp_path},
    }
    content = second[:-9] + bytes([second[-9] ^ 1]) + second[-8:]
    damage = changed("content", "train-2.tfrecord", content)
    few = changed("few", "features.json", b'{"classes": 3, "shape": [2, 2]}')
    found = look(tf_python, *cases.values(), damage, few)
    for result, error in zip(found, cases, strict=False):
        assert error in result["error"]
    # What shows only when a record is read is named then.
    error = found[-2]["train"]["error"]
    assert f"{tmp_path}/content/train-2.tfrecord at byte {middle}" in error
    assert "train-1" not in error
    assert "few/train-2.tfrecord at byte" in found[-1]["train"]["error"]


# ---------------------------------------------------------------------------------- elsewhere

SERVERS = """
import os, subprocess
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf
given = json.load(sys.stdin)
SERVER = '''
import json, sys
import tensorflow as tf
cluster, job = json.loads(sys.argv[1]), sys.argv[2]
tf.distribute.Server(cluster, job_name=job, task_index=0, protocol="grpc").join()
'''
servers = [
    subprocess.Popen([sys.executable, "-c", SERVER, json.dumps(given["cluster"]), job],
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL)
    for job in ("ps", "worker")
]
result = {}
try:
    opened = [open_one(name, folder) for name, folder in given["data"].items()]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(given["cluster"]), task_type="chief", task_id=0, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    for found in opened:
        def pipeline():
            return tf.data.Dataset.range(4).batch(4).map(found.train.fetch).repeat()

        @tf.function
        def step(iterator):
            return next(iterator)

        iterator = iter(coordinator.create_per_worker_dataset(pipeline))
        features, labels = coordinator.schedule(step, args=(iterator,)).fetch()
        own_features, own_labels = found.train.fetch(tf.range(4, dtype=tf.int64))
        result[found.name] = [bool((features == own_features.numpy()).all()),
                              bool((labels == own_labels.numpy()).all())]
finally:
    for server in servers:
        server.kill()
print(json.dumps(result), flush=True)
os._exit(0)  # else TensorFlow waits for the servers
"""


@pytest.mark.tensorflow
def test_worker_of_parameter_servers_fetches_the_same(tf_python: str, tmp_path: Path) -> None:
    """The pipeline runs in the worker's process, which has none of this Python."""
    write_images(tmp_path / "images")
    write_records(
        tf_python, tmp_path / "x", json.dumps({"classes": 4}), VECTORS.replace("3)", "4)")
    )
    given: dict[str, Any] = {
        "cluster": {job: [f"localhost:{free_port()}"] for job in ("chief", "ps", "worker")},
        "data": {
            "digits": None,
            "synthetic": None,
            "images": str(tmp_path / "images"),
            "tfrecord": str(tmp_path / "x"),
        },
    }
    found = run_python(tf_python, SERVERS, given)
    assert found == {name: [True, True] for name in given["data"]}


# ---------------------------------------------------------------------------------- a package

#: What of the package is used, over TFRecord files that are written here.
PACKAGE = """
import os, types
from pathlib import Path
import tensorflow as tf

folder = Path({folder!r})
folder.mkdir()
for part, count in (("train", 7), ("validation", 4)):
    for shard in range(2):
        with tf.io.TFRecordWriter(str(folder / f"own-{{part}}.tfrecord-{{shard}}-of-2")) as writer:
            for number in range(shard, count, 2):
                image = tf.io.encode_png(tf.fill([4 + number % 2, 4, 3], tf.cast(number, tf.uint8)))
                feature = {{
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.numpy()])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 3])),
                }}
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())

class Features(dict):
    def deserialize_example(self, record):
        specs = {{"image": tf.io.FixedLenFeature([], tf.string),
                 "label": tf.io.FixedLenFeature([], tf.int64)}}
        parsed = tf.io.parse_single_example(record, specs)
        image = tf.io.decode_image(parsed["image"], channels=3, expand_animations=False)
        return {{"image": image, "label": parsed["label"]}}

def split(part):
    return types.SimpleNamespace(filepaths=sorted(map(str, folder.glob(f"own-{{part}}*"))))

class Builder:
    info = types.SimpleNamespace(
        supervised_keys=("image", "label"),
        file_format=types.SimpleNamespace(value="tfrecord"),
        splits={{part: split(part) for part in ("train", "validation")}},
        features=Features(image=types.SimpleNamespace(shape=(None, None, 3)),
                          label=types.SimpleNamespace(num_classes=3)),
    )
    def __init__(self, prepared):
        self.is_prepared = lambda: prepared

def builder(name, data_dir):
    if name == "unknown":
        raise ValueError("Dataset unknown not found.\\nDid you mean ...")
    return Builder(name == "own")

sys.modules["tensorflow_datasets"] = types.SimpleNamespace(builder=builder)
"""


@pytest.mark.tensorflow
def test_prepared_data_sets_of_the_package_are_read_by_number(
    tf_python: str, tmp_path: Path
) -> None:
    wanted = {"folder": tmp_path, "image_size": 0}
    fetch = {"train": [0, 1, 6], "test": [3]}
    own, unknown, unprepared = look(
        tf_python,
        {**wanted, "name": "tfds:own", "fetch": fetch},
        {**wanted, "name": "tfds:unknown"},
        {**wanted, "name": "tfds:later"},
        patch=PACKAGE.format(folder=str(tmp_path / "own")),
    )
    assert (own["sizes"], own["shape"], own["classes"]) == ([7, 4], [4, 4, 3], 3)
    # The first file has 0, 2, 4 and 6; the second one the others, of another height.
    assert own["train"]["labels"] == [0, 2, 2]
    assert own["test"]["labels"] == [0]
    colours = [image[3][3][0] for image in own["train"]["features"]]
    assert colours == pytest.approx([0, 2 / 255, 5 / 255])
    assert unknown["error"] == (
        f"tfds:unknown in {tmp_path} cannot be opened: Dataset unknown not found."
    )
    assert f"it is not prepared in {tmp_path}: run `tfds build later" in unprepared["error"]


@pytest.mark.tensorflow
def test_data_sets_of_a_package_that_is_missing(tf_python: str, tmp_path: Path) -> None:
    (found,) = look(tf_python, {"folder": tmp_path, "name": "tfds:mnist"})
    assert "tensorflow_datasets cannot be imported" in found["error"]
    assert "tensorflow_extra_requirements" in found["error"]
