"""Keyed random numbers, dropout, augmentation and the order of the examples."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.training_script import halves, inside, modules, np, replicas_of_cpu, tf

keyed, order = modules("training.keyed", "training.order")
pytestmark = pytest.mark.tensorflow


def keys_of(count: int, seed: int = 5, step: int = 7, first: int = 0) -> Any:
    indices = first + tf.range(count, dtype=tf.int64)
    return keyed.sample_keys(seed, tf.constant(step, tf.int64), indices)


def near(value: float, degrees: float) -> bool:
    """Return whether a chi-square statistic is within five standard deviations of its mean."""
    return abs(value - degrees) <= 5 * math.sqrt(2 * degrees)


def chi_square(numbers: Any, bins: int) -> float:
    """Return the chi-square statistic of whole numbers below ``bins`` for a uniform draw."""
    expected = numbers.size / bins
    return float(((np.bincount(numbers.ravel(), minlength=bins) - expected) ** 2 / expected).sum())


@inside
def test_the_numbers_are_known_and_the_same_bits_under_xla() -> None:
    def draw(step: Any, indices: Any) -> list[Any]:
        keys = keyed.sample_keys(5, step, indices)
        images = tf.reshape(tf.range(4 * 6 * 6, dtype=tf.float32), [4, 6, 6, 1])
        numbers = [keyed.uniform(keys, shape, 1) for shape in ((2,), ())]
        return [keys, *numbers, order.crop_flip(images, keys)]

    ways = [draw, tf.function(draw), tf.function(draw, jit_compile=True)]
    drawn = [way(tf.constant(7, tf.int64), tf.range(4, dtype=tf.int64)) for way in ways]
    eager, graph, xla = ([tensor.numpy().tobytes() for tensor in found] for found in drawn)
    assert eager == graph == xla
    # Values of the published fmix32 of MurmurHash3. All of them were also computed with Python's
    # integers.
    mixed = keyed.mix(tf.constant([0, 1, 0xFFFFFFFF], tf.uint32))
    assert mixed.numpy().tolist() == [0, 0x514E28B7, 0x81F16F39]
    keys, numbers, scalars, _ = drawn[0]
    assert keys.numpy().tolist() == [
        [817964178, 1160581098],
        [2901992654, 3957705857],
        [2060363875, 3842932960],
        [1523802479, 1821012883],
    ]
    assert (numbers.numpy() * 2**24).tolist() == [
        [12091985, 8733820],
        [854168, 14231273],
        [11946445, 8142722],
        [3454608, 69848],
    ]
    assert (numbers.dtype, numbers.shape, scalars.shape) == (tf.float32, [4, 2], [4])


@inside
def test_numbers_are_even_and_independent() -> None:
    def series(stream: int = 3, **what: int) -> Any:
        return keyed.uniform(keys_of(2**15, **what), (16,), stream).numpy()

    base = series()
    others = {
        "next step": series(step=8),
        "next seed": series(seed=6),
        "next sample": series(first=1),
        "far step": series(step=7 + 2**32),
        "far sample": series(first=2**32),
        "far seed": series(seed=5 + 2**32),
        "next stream": series(stream=4),
        "layer": series(stream=keyed.LAYER_STREAMS + 3),
        "next number": np.roll(base, 1, axis=1),
    }
    base_words = (base * 2**24).astype(np.int64)
    for name, found in {"base": base, "first": base[:, :1], **others}.items():
        words = (found * 2**24).astype(np.int64)
        assert near(chi_square(words >> 16, 256), 255), name
        assert near(chi_square(words & 255, 256), 255), name
        if name in others:
            assert near(chi_square((base_words >> 20) * 16 + (words >> 20), 256), 255), name
            correlation = np.corrcoef(base.ravel(), found.ravel())[0, 1]
            assert abs(correlation) * base.size**0.5 < 5, name
    assert [len(np.unique(words)) for words in keys_of(2**18).numpy().T] == [2**18, 2**18]
    many = keyed.uniform(keys_of(2), (2**21,), 0).numpy()
    assert 0 <= many.min() < 1e-5
    assert 1 - 1e-5 < many.max() < 1
    assert many.mean() == pytest.approx(0.5, abs=1e-3)


@inside
def test_dropout_is_by_sample() -> None:
    replicas = replicas_of_cpu(2)
    layer = keyed.Dropout(0.3, stream=2)
    keys, inputs = keys_of(64), 1 + tf.random.uniform((64, 20, 50))

    def drop(inputs: Any, keys: Any, layer: Any = layer) -> Any:
        with keyed.keys_for_layers(keys):
            return layer(inputs, training=True)

    out = drop(inputs, keys).numpy()
    kept = out != 0
    # 64000 positions: five standard deviations are 0.009.
    assert kept.mean() == pytest.approx(0.7, abs=0.009)
    assert (out / inputs).numpy().mean() == pytest.approx(1, abs=0.013)
    other = drop(inputs, keys, keyed.Dropout(0.3, stream=3)).numpy() != 0
    assert (kept == other).mean() == pytest.approx(0.7**2 + 0.3**2, abs=0.01)
    assert kept.mean(axis=(1, 2)).min() > 0.7 - 5 * (0.21 / 1000) ** 0.5
    np.testing.assert_allclose((out / inputs).numpy()[kept], 1 / 0.7, atol=1e-4)

    def both(inputs: Any, keys: Any) -> Any:
        shares = [halves(replicas, whole) for whole in (inputs, keys)]
        return tf.concat(replicas.experimental_local_results(replicas.run(drop, shares)), 0)

    loose = [tf.TensorSpec([None, None, 50]), tf.TensorSpec([None, 2], tf.uint32)]
    same = {
        "replicas": tf.function(both)(inputs, keys),
        "again": drop(inputs, keys),
        "loose shape": tf.function(drop, input_signature=loose)(inputs, keys),
        "xla": tf.function(drop, jit_compile=True)(inputs, keys),
        "recreated": drop(inputs, keys, keyed.Dropout.from_config(layer.get_config())),
    }
    for name, found in same.items():
        assert (found.numpy() == out).all(), name
    assert (layer(inputs) == inputs).numpy().all()
    assert (drop(inputs, keys, keyed.Dropout(0, stream=0)) == inputs).numpy().all()
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    half = drop(inputs, keys, keyed.Dropout(0.3, stream=2))
    tf.keras.mixed_precision.set_global_policy("float32")
    assert half.dtype == tf.float16
    assert ((half.numpy() != 0) == kept).all()
    with pytest.raises(RuntimeError, match="called with training=True outside of keys_for_layers"):
        layer(inputs, training=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        drop(inputs, keys[:1])
    with pytest.raises(ValueError, match=r"^dropout rate 1\.0 must be at least 0 and less than 1$"):
        keyed.Dropout(1.0, stream=0)
    with pytest.raises(ValueError, match=r"^dropout stream -1 is negative$"):
        keyed.Dropout(0.5, stream=-1)


@inside
def test_crops_and_flips_are_those_of_the_paper_and_equally_likely() -> None:
    side, pad, count = 9, 4, 2**15
    # Each pixel contains its number, so an image shows how it was moved and flipped.
    image = 1 + tf.reshape(tf.range(side * side), [1, side, side, 1])
    images = tf.repeat(image, count, axis=0)
    moved = order.crop_flip(images, keys_of(count))
    assert (moved.dtype, moved.shape) == (tf.int32, [count, side, side, 1])
    found, original = moved.numpy(), image[0].numpy()
    share = order.crop_flip(images[5:16], keys_of(11, first=5))
    assert (share.numpy() == found[5:16]).all()
    middle = found[:, side // 2, side // 2, 0] - 1
    top, left = middle // side - side // 2 + pad, middle % side - side // 2 + pad
    padded = np.pad(original, [[pad, pad], [pad, pad], [0, 0]])
    for n in range(500):
        crop = padded[top[n] : top[n] + side, left[n] : left[n] + side]
        assert (found[n] == crop).all() or (found[n] == crop[:, ::-1]).all()
    assert near(chi_square(top * 9 + left, 81), 80)

    still = order.crop_flip(images[:200], keys_of(200), pad=0).numpy()
    turned = sum(bool((one == original[:, ::-1]).all()) for one in still)
    assert turned + sum(bool((one == original).all()) for one in still) == 200
    assert abs(turned - 100) <= 35
    wide = order.crop_flip(tf.ones([3, 5, 8, 2], tf.uint8), keys_of(3), pad=1)
    assert (wide.dtype, wide.shape) == (tf.uint8, [3, 5, 8, 2])


def epochs_of(size: int, seed: int, epochs: list[int]) -> list[Any]:
    """Return the order of the examples in some epochs, each of which is one batch."""
    zero = tf.constant(0, tf.int64)
    steps = (tf.constant(epoch, tf.int64) for epoch in epochs)
    return [order.indices(seed, size, size, step, zero, size).numpy() for step in steps]


@inside
@pytest.mark.parametrize("size", [1437, 50_000])
def test_neighbors_of_an_epoch_differ_as_in_a_uniform_permutation(size: int) -> None:
    def most_common_step(places: Any) -> int:
        return int(np.bincount(np.diff(places) + size).max())

    epochs = epochs_of(size, 0, list(range(8)))
    for found in epochs:
        assert (np.sort(found) == np.arange(size)).all()
    draw = np.random.default_rng(0)
    uniform = max(most_common_step(draw.permutation(size)) for _ in range(8))
    # One more than the largest of eight of numpy's, because these are maxima of tens of thousands.
    assert max(map(most_common_step, epochs)) <= uniform + 1


@inside
def test_no_two_epochs_or_seeds_have_an_order_in_common() -> None:
    size, far = 1437, [1, 256, 65536]
    base, *others = epochs_of(size, 0, [0, *far])
    for seed in (*far, 1_000_000_000):
        others += epochs_of(size, seed, [0])
    others += epochs_of(size, 1, [1])
    # On average, one of 1437 examples keeps its place. Ten would occur in one of a million runs.
    assert max((base == other).mean() for other in others) < 10 / size


@inside
def test_no_example_is_in_two_batches_of_an_epoch() -> None:
    zero = tf.constant(0, tf.int64)
    batches = [
        order.indices(5, 1437, 120, tf.constant(step, tf.int64), zero, 120).numpy()
        for step in range(22)
    ]
    for epoch in (batches[:11], batches[11:]):
        drawn = np.concatenate(epoch)
        assert len(np.unique(drawn)) == 11 * 120
        assert 0 <= drawn.min() <= drawn.max() < 1437
