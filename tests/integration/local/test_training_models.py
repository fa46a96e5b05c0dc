"""The networks of the training program."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_ranks import Start, run_gang
from tests.support.training_script import (
    call,
    halves,
    inside,
    modules,
    np,
    replicas_of_cpu,
    tf,
)

cluster, settings = modules("training.cluster", "training.settings")
keyed, models = modules("training.keyed", "training.models")
(synthetic,) = modules("training.data.synthetic")

#: Trained parameters, and kernels of convolutions and dense layers, by name.
KNOWN = {
    "digits-cnn": (9_930, 3),
    "mnist-cnn": (347_146, 3),
    "resnet20": (269_722, 20),
    "resnet32": (464_154, 32),
    "linear": (650, 1),
}
SHAPES = {"digits-cnn": (8, 8, 1), "mnist-cnn": (28, 28, 1), "linear": (8, 8, 1)}


def build(name: str, seed: int = 3, **options: Any) -> Any:
    if name == "resnet8":  # the smallest possible one, which users cannot select
        own = {"sync_batch_norm": False, "dropout": 0.0, **options}
        return models.resnet(8, (16, 16, 3), 10, seed, **own)
    return models.build(name, SHAPES.get(name, (32, 32, 3)), 10, seed, **options)


@inside
def test_names_and_shapes_are_checked() -> None:
    assert set(KNOWN) < set(settings.MODELS)
    for name, shape in (("linear", (13,)), ("mnist-cnn", (28, 28, 1))):
        models.check_model(name, shape)
    with pytest.raises(cluster.ConfigError) as flat:
        models.check_model("resnet20", (13,))
    assert str(flat.value) == (
        "model resnet20 takes images [height, width, channels] of at least 1 x 1 pixels, "
        "but the examples have the shape [13]; model linear takes any shape"
    )
    with pytest.raises(cluster.ConfigError, match=r"^model mnist-cnn .* at least 4 x 4 pixels"):
        models.check_model("mnist-cnn", (3, 28, 1))


def sha(model: Any) -> str:
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


@pytest.mark.soak
@inside
def test_networks_are_as_published_and_drawn_by_seed() -> None:
    hashes = {}
    for number, name in enumerate([*KNOWN, "resnet8"]):
        tf.random.set_seed(number)
        model = build(name)
        hashes[name] = sha(model)
        kernels = models.decayed(model)
        assert min(len(kernel.shape) for kernel in kernels) == 2
        count = sum(np.prod(variable.shape) for variable in model.trainable_variables)
        assert name == "resnet8" or (count, len(kernels)) == KNOWN[name]
    for name in ("digits-cnn", "mnist-cnn", "linear", "resnet8"):
        assert sha(build(name)) == hashes[name]
    assert sha(build("resnet8", dropout=0.5, sync_batch_norm=True)) == hashes["resnet8"]

    first, *others = (
        [np.asarray(kernel) for kernel in models.decayed(build("resnet8", seed=seed))]
        for seed in range(4)
    )
    for kernel in first:
        # All weights have the distribution of their layer.
        assert 0.8 < kernel.std() / (2 / np.prod(kernel.shape[:-1])) ** 0.5 < 1.2
        # No weights occur with another seed, not even in another layer.
        for other in (other for kernels in others for other in kernels):
            assert not np.array_equal(kernel, other)
    assert models.build("linear", (13,), 1, 0).output_shape == (None, 1)


def count(*names: str) -> dict[str, int]:
    """Return the numbers of trained parameters of the doctor's networks."""
    found = {}
    for name in names:
        variables = models.build(name, synthetic.SHAPE, 10, 0).trainable_variables
        found[name] = sum(map(int, map(np.size, variables)))
    return found


@pytest.mark.tensorflow
def test_the_doctor_knows_how_much_networks_exchange(tf_python: str) -> None:
    from train.cli.doctor import PARAMETERS  # not in TensorFlow's environment

    assert call(tf_python, count, *PARAMETERS) == PARAMETERS


@pytest.mark.soak
@inside
def test_residual_networks() -> None:
    replicas = replicas_of_cpu(2)
    images = tf.random.stateless_uniform((8, 16, 16, 3), (1, 2))
    keys = keyed.sample_keys(0, 0, tf.range(8))

    model = build("resnet8")
    names = ("stage1_block1_relu2", "stage2_block1_pad")
    shortcut = tf.keras.Model(model.input, [model.get_layer(name).output for name in names])
    before, after = (outputs.numpy() for outputs in shortcut(images))
    assert after.shape == (8, 8, 8, 32)
    assert (after[..., 8:24] == before[:, ::2, ::2]).all()
    assert (after[..., :8] == 0).all()
    assert (after[..., 24:] == 0).all()
    odd = models.resnet(8, (33, 29, 1), 4, 0, sync_batch_norm=False, dropout=0.0)
    assert odd(tf.zeros((2, 33, 29, 1))).shape == (2, 4)
    layers = tf.keras.layers
    assert not any(of.use_bias for of in model.layers if isinstance(of, layers.Conv2D))

    def logits(model: Any, images: Any, keys: Any) -> Any:
        with keyed.keys_for_layers(keys):
            return model(images, training=True)

    def difference(**options: Any) -> float:
        """Return the difference between trainings with two replicas and with a single one."""
        with replicas.scope():
            shared = build("resnet8", **options)
        norms = [of for of in shared.layers if isinstance(of, layers.BatchNormalization)]
        assert {of.synchronized for of in norms} == {options["sync_batch_norm"]}
        both = tf.function(lambda *given: replicas.run(lambda *own: logits(shared, *own), given))
        given = [halves(replicas, whole) for whole in (images, keys)]
        parts = tf.concat(replicas.experimental_local_results(both(*given)), 0)
        return float(tf.reduce_max(abs(parts - logits(build("resnet8", **options), images, keys))))

    assert difference(sync_batch_norm=True, dropout=0.3) < 1e-4
    assert difference(sync_batch_norm=False) > 1e-3

    dropping = build("resnet8", dropout=0.2)

    def gradients(images: Any, keys: Any) -> Any:
        with tf.GradientTape() as tape:
            cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
            loss = tf.reduce_mean(cross_entropy(tf.range(8), logits(dropping, images, keys)))
        return loss, tape.gradient(loss, dropping.trainable_variables)

    loss, slopes = tf.function(gradients, jit_compile=True)(images, keys)
    assert 1 < loss < 10
    assert all(float(tf.reduce_max(abs(slope))) > 0 for slope in slopes)


def nested() -> Any:
    """Return a network with dropout in its own layers, and in those of a nested network."""
    layers = tf.keras.layers
    inner = tf.keras.Sequential([tf.keras.Input((6,)), layers.Dense(5)])
    assert keyed.exportable(inner) is inner
    inner.add(layers.BatchNormalization())
    inner.add(keyed.Dropout(0.5, stream=1))
    inputs = tf.keras.Input((6,))
    outer = keyed.Dropout(0.25, stream=0)(layers.Dense(5)(inputs))
    model = tf.keras.Model(inputs, layers.Add()([inner(inputs), outer]))
    model.set_weights([tf.random.uniform(w.shape) for w in model.get_weights()])
    return model


def outputs_of(model: Any, **options: Any) -> Any:
    return model(tf.fill((2, *model.input_shape[1:]), 0.5), **options)


def rows(outputs: Any) -> Any:
    return tf.cast(outputs, tf.float32).numpy().tolist()


def save_mixed(name: str, policy: str, path: Path) -> Any:
    tf.keras.mixed_precision.set_global_policy(policy)
    model = nested() if name == "nested" else build(name, dropout=0.25)
    outputs = outputs_of(model)
    twin = keyed.exportable(model)
    twin.set_weights(model.get_weights())
    twin.save(path)
    kinds = {tf.convert_to_tensor(weights).dtype for weights in model.get_weights()}
    assert kinds == {tf.float32}
    if name != "nested":
        inner = model.layers[-2](tf.zeros((1, *model.layers[-2].input.shape[1:])))
        assert (outputs.dtype, inner.dtype) == (tf.float32, policy.removeprefix("mixed_"))
    return rows(outputs)


def load(path: Path) -> Any:
    def rates(layer: Any) -> list[float]:
        if type(layer) is tf.keras.layers.Dropout:
            return [layer.rate]
        return [rate for inner in getattr(layer, "layers", []) for rate in rates(inner)]

    model = tf.keras.models.load_model(path)
    outputs = rows(outputs_of(model))
    assert len(outputs_of(model, training=True)) == 2
    return outputs, sorted(rates(model)), "training" in sys.modules


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param("resnet8", "mixed_float16", marks=pytest.mark.soak),
        ("digits-cnn", "mixed_bfloat16"),
        ("nested", "mixed_bfloat16"),
    ],
)
def test_mixed_precision_gives_float32_and_a_file_that_loads_without_the_project(
    tf_python: str, tmp_path: Path, name: str, policy: str
) -> None:
    path = tmp_path / "model.keras"
    outputs = call(tf_python, save_mixed, name, policy, path)
    rates = [0.25, 0.5] if name == "nested" else [0.25]
    loaded = call(tf_python, load, path, project=False)
    assert loaded == (outputs, rates, False)


APPLICATION = (
    "--model=keras:MobileNet",
    "--data=synthetic",
    "--examples=32",
    "--batch-size=16",
    "--epochs=1",
)


@pytest.mark.tensorflow
def test_a_network_of_keras_trains_and_is_left_for_others(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    [rank] = run_gang(start, tmp_path, *APPLICATION, workers=1)
    path = rank.folder / "model/model.keras"
    _, rates, with_project = call(tf_python, load, path, project=False)
    assert (rates, with_project) == ([0.001], False)
