"""The networks of the training program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_ranks import Start, run_gang
from tests.support.training_script import TRAIN, result_of

#: Trained parameters, and kernels of convolutions and dense layers, by name.
KNOWN = {
    "digits-cnn": (9_930, 3),
    "mnist-cnn": (347_146, 3),
    "resnet20": (269_722, 20),
    "resnet32": (464_154, 32),
    "resnet44": (658_586, 44),
    "resnet56": (853_018, 56),
    "resnet110": (1_727_962, 110),
    "linear": (650, 1),
}

START = """
import hashlib
from training import keyed, models

SHAPES = {"digits-cnn": (8, 8, 1), "mnist-cnn": (28, 28, 1), "linear": (8, 8, 1)}

def build(name, seed=3, **options):
    return models.build(name, SHAPES.get(name, (32, 32, 3)), 10, seed, **options)

def sha(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
"""

# ---------------------------------------------------------------------------------- names

CHECK = """
import json
from training.models import MODELS, check_model
cases = [("resnet18", (32, 32, 3)), ("resnet20", (13,)), ("mnist-cnn", (3, 28, 1)),
         ("linear", (13,)), ("mnist-cnn", (28, 28, 1))]
said = []
for name, shape in cases:
    try:
        said.append(check_model(name, shape))
    except ValueError as error:
        said.append(type(error).__name__ + ": " + str(error))
print(json.dumps([MODELS, said]))
"""


def test_names_and_shapes_are_checked_without_tensorflow(tmp_path: Path) -> None:
    for module in ("tensorflow", "numpy"):
        (tmp_path / f"{module}.py").write_text(f"raise SystemExit('{module} was imported')")
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={"PYTHONPATH": f"{tmp_path}:{TRAIN}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    names, (unknown, flat, small, *right) = json.loads(done.stdout)
    assert list(names) == list(KNOWN)
    assert all(line and "\n" not in line for line in names.values())
    assert unknown == (
        "ConfigError: model 'resnet18' is not known; there are digits-cnn, mnist-cnn, resnet20, "
        "resnet32, resnet44, resnet56, resnet110, linear, and keras:NAME"
    )
    assert flat == (
        "ConfigError: model resnet20 takes images [height, width, channels] of at least 1 x 1 "
        "pixels, and the examples' shape is [13]; model linear takes any shape"
    )
    assert "model mnist-cnn takes images" in small
    assert "of at least 4 x 4 pixels" in small
    assert right == [None, None]


# ---------------------------------------------------------------------------------- weights

WEIGHTS = """
found = {}
for name in models.MODELS:
    tf.random.set_seed(len(found))
    model = build(name)
    kernels = models.decayed(model)
    found[name] = [sum(int(np.prod(v.shape)) for v in model.trainable_variables), len(kernels),
                   min(len(kernel.shape) for kernel in kernels), sha(model)]
again = {name: sha(build(name)) for name in ("digits-cnn", "mnist-cnn", "resnet20", "linear")}
other = sha(build("resnet20", seed=4))
dropped = sha(build("resnet20", dropout=0.5, sync_batch_norm=True))

# No kernel of one seed is one of another seed, not even of another layer.
def kernels_of(seed):
    return [np.asarray(kernel) for kernel in models.decayed(build("resnet20", seed=seed))]
common = sum(
    one.shape == other.shape and bool((one == other).all())
    for one in kernels_of(0) for seed in (1, 2, 3) for other in kernels_of(seed)
)
# All are of the distribution that their layers have.
spread = [
    float(kernel.std() / (2 / np.prod(kernel.shape[:-1])) ** 0.5) for kernel in kernels_of(0)
]
seeds = [common, min(spread), max(spread)]
number = models.build("linear", (13,), 1, 0)
done([found, again, other, dropped, seeds, list(number.output_shape)])
"""


@pytest.fixture(scope="module")
def weights(tf_python: str) -> dict[int, Any]:
    """What is found of the networks under each generation of Keras."""
    return {keras: result_of(tf_python, START + WEIGHTS, keras=keras) for keras in (2, 3)}


@pytest.mark.tensorflow
@pytest.mark.parametrize("keras", [2, 3])
def test_networks_are_as_published_and_drawn_by_seed(weights: dict[int, Any], keras: int) -> None:
    found, again, other, dropped, seeds, number = weights[keras]
    assert {name: (count, kernels) for name, (count, kernels, _, _) in found.items()} == KNOWN
    assert min(dimensions for _, _, dimensions, _ in found.values()) == 2
    hashes = {name: values[-1] for name, values in found.items()}
    assert again == {name: hashes[name] for name in again}
    assert other != hashes["resnet20"]
    assert dropped == hashes["resnet20"]
    assert seeds[0] == 0
    assert 0.8 < seeds[1] < seeds[2] < 1.2
    assert number == [None, 1]


@pytest.mark.tensorflow
def test_both_generations_of_keras_draw_the_same(weights: dict[int, Any]) -> None:
    assert weights[2] == weights[3]


# ---------------------------------------------------------------------------------- behaviour

RESNET = """
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
images = tf.random.stateless_uniform((8, 32, 32, 3), (1, 2))
keys = keyed.sample_keys(0, 0, tf.range(8))
replicas = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])

model = build("resnet20")
layer = model.get_layer
shortcut = tf.keras.Model(model.input, [layer("stage1_block3_relu2").output,
                                        layer("stage2_block1_pad").output])
before, after = (t.numpy() for t in shortcut(images))
odd = models.build("resnet20", (33, 29, 1), 4, 0)(tf.zeros((2, 33, 29, 1)))

def outputs(sync, dropout=0.0):
    "What 2 replicas give in training, and what one gives for the whole batch."
    with replicas.scope():
        shared = build("resnet20", sync_batch_norm=sync, dropout=dropout)
    own = build("resnet20", dropout=dropout)
    def call(model, images, keys):
        with keyed.keys_for_layers(keys):
            return model(images, training=True)
    of = lambda whole: replicas.experimental_distribute_values_from_function(
        lambda context: whole[4 * context.replica_id_in_sync_group:][:4])
    both = tf.function(lambda *given: replicas.run(lambda *g: call(shared, *g), given))
    parts = replicas.experimental_local_results(both(of(images), of(keys)))
    return float(tf.reduce_max(abs(tf.concat(parts, 0) - call(own, images, keys))))

@tf.function(jit_compile=True)
def gradients(images, keys):
    with tf.GradientTape() as tape, keyed.keys_for_layers(keys):
        logits = dropping(images, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.range(8), logits))
    return loss, tape.gradient(loss, dropping.trainable_variables)

dropping = build("resnet20", dropout=0.2)
loss, slopes = gradients(images, keys)
found = {
    "picked": bool((after[..., 8:24] == before[:, ::2, ::2]).all()),
    "zeros": bool((after[..., :8] == 0).all() and (after[..., 24:] == 0).all()),
    "shape": after.shape == (8, 16, 16, 32),
    "odd images": odd.shape == (2, 4),
    "no bias in convolutions": not any(l.use_bias for l in model.layers
                                       if isinstance(l, tf.keras.layers.Conv2D)),
    "synchronized": {l.synchronized for l in build("resnet20", sync_batch_norm=True).layers
                     if isinstance(l, tf.keras.layers.BatchNormalization)} == {True},
    "all learn": all(float(tf.reduce_max(abs(s))) > 0 for s in slopes),
}
done([found, outputs(True), outputs(True, 0.3), outputs(False), float(loss)])
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize("keras", [2, 3])
def test_residual_networks(tf_python: str, keras: int) -> None:
    found, synchronized, dropping, apart, loss = result_of(tf_python, START + RESNET, keras=keras)
    assert found == dict.fromkeys(found, True)
    assert synchronized < 1e-4
    assert dropping < 1e-4
    assert apart > 1e-3
    assert 1 < loss < 10


MIXED = """
tf.keras.mixed_precision.set_global_policy(sys.argv[2])
model = build(sys.argv[1], dropout=0.25)
image = tf.fill((2, *model.input_shape[1:]), 0.5)
logits = model(image)
inner = model.layers[-2](tf.zeros((1, *model.layers[-2].input.shape[1:])))
keyed.exportable(model).save(sys.argv[3])
done([logits.dtype.name, inner.dtype.name, sorted({w.dtype.name for w in map(
    tf.convert_to_tensor, model.get_weights())}), logits.numpy().tolist()])
"""

LOAD = """
model = tf.keras.models.load_model(sys.argv[1])
image = tf.fill((2, *model.input_shape[1:]), 0.5)
done(["training" in sys.modules, model(image).numpy().tolist()])
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "keras", "policy", "half"),
    [
        ("resnet20", 2, "mixed_float16", "float16"),
        ("resnet20", 3, "mixed_bfloat16", "bfloat16"),
        ("mnist-cnn", 3, "mixed_float16", "float16"),
        ("digits-cnn", 2, "mixed_bfloat16", "bfloat16"),
    ],
)
def test_mixed_precision_gives_float32_and_a_file_that_loads_elsewhere(
    tf_python: str, tmp_path: Path, name: str, keras: int, policy: str, half: str
) -> None:
    path = str(tmp_path / "model.keras")
    saved = result_of(tf_python, START + MIXED, name, policy, path, keras=keras)
    logits, inner, variables, outputs = saved
    assert (logits, inner, variables) == ("float32", half, ["float32"])
    loaded = result_of(tf_python, LOAD, path, keras=keras, project=False)
    assert loaded == [False, outputs]


# ---------------------------------------------------------------------------------- Keras' own

APPLICATION = (
    "--model=keras:MobileNet",
    "--data=synthetic",
    "--examples=32",
    "--batch-size=16",
    "--epochs=1",
    "--export=both",
)
SERVED = """
model = Path(sys.argv[1])
images = np.random.default_rng(1).random((3, 32, 32, 3), np.float32)
keras = tf.keras.models.load_model(model / "model.keras")
saved = tf.saved_model.load(str(model / "saved_model"))
served = saved.serve(images)
difference = float(np.abs(np.asarray(keras(images)) - np.asarray(served)).max())
done([difference, list(served.shape)])
"""


@pytest.mark.tensorflow
def test_a_network_of_keras_trains_and_is_left_for_others(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    [rank] = run_gang(start, tmp_path, *APPLICATION, workers=1)
    model = rank.folder / "model"
    difference, shape = result_of(tf_python, SERVED, str(model), project=False)
    assert (difference, shape) == (pytest.approx(0, abs=1e-5), [3, 10])
