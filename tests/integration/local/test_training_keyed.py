"""Random numbers by key, dropout, augmentation and the order of the examples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_script import result_of

pytestmark = pytest.mark.tensorflow

START = """
from training import keyed, order

def keys_of(count, seed=5, step=7, first=0):
    indices = first + tf.range(count, dtype=tf.int64)
    return keyed.sample_keys(seed, tf.constant(step, tf.int64), indices)
"""


def within(value: float, degrees: float) -> bool:
    """Whether a chi-square statistic is within five standard deviations of its mean."""
    return abs(value - degrees) <= 5 * math.sqrt(2 * degrees)


# ---------------------------------------------------------------------------------- numbers

NUMBERS = """
def draw(step, indices):
    keys = keyed.sample_keys(5, step, indices)
    return keys, keyed.uniform(keys, (2,), 1), keyed.uniform(keys, (), 1), order.crop_flip(
        tf.reshape(tf.range(4 * 6 * 6 * 1, dtype=tf.float32), [4, 6, 6, 1]), keys)

arguments = tf.constant(7, tf.int64), tf.range(4, dtype=tf.int64)
ways = [draw, tf.function(draw), tf.function(draw, jit_compile=True)]
bits = [[tensor.numpy().tobytes().hex() for tensor in way(*arguments)] for way in ways]
keys, numbers, scalars, _ = draw(*arguments)
mixed = keyed.mix(tf.constant([0, 1, 0xFFFFFFFF], tf.uint32)).numpy()
done([bits, keys.numpy().tolist(), (numbers.numpy() * 2**24).tolist(), mixed.tolist(),
      [str(numbers.dtype), *numbers.shape, len(scalars.shape)]])
"""


def test_the_numbers_are_known_and_the_same_bits_under_xla(tf_python: str) -> None:
    (eager, graph, xla), keys, numbers, mixed, form = result_of(tf_python, START + NUMBERS)
    assert eager == graph == xla
    # Of MurmurHash3's fmix32 as it is published. All of these were computed with whole numbers of
    # Python, too.
    assert mixed == [0, 0x514E28B7, 0x81F16F39]
    assert keys == [
        [817964178, 1160581098],
        [2901992654, 3957705857],
        [2060363875, 3842932960],
        [1523802479, 1821012883],
    ]
    assert numbers == [
        [12091985, 8733820],
        [854168, 14231273],
        [11946445, 8142722],
        [3454608, 69848],
    ]
    assert form == ["<dtype: 'float32'>", 4, 2, 1]


STATISTICS = """
def chi_square(values, bins):
    counts = np.bincount(values.ravel(), minlength=bins)
    expected = values.size / bins
    return float(((counts - expected) ** 2 / expected).sum())

def series(**what):
    return keyed.uniform(keys_of(2**15, **what), (16,), 3).numpy()

base = series()
others = {
    "next step": series(step=8), "next seed": series(seed=6), "next sample": series(first=1),
    "far step": series(step=7 + 2**32), "far sample": series(first=2**32),
    "far seed": series(seed=5 + 2**32),
    "next stream": keyed.uniform(keys_of(2**15), (16,), 4).numpy(),
    "layer": keyed.uniform(keys_of(2**15), (16,), keyed.LAYER_STREAMS + 3).numpy(),
    "next number": np.roll(base, 1, axis=1),
}
words = lambda u: (u * 2**24).astype(np.int64)
even = {name: [chi_square(words(u) >> 16, 256), chi_square(words(u) & 255, 256)]
        for name, u in {"base": base, "first": base[:, :1], **others}.items()}
pairs = {name: chi_square((words(base) >> 20) * 16 + (words(u) >> 20), 256)
         for name, u in others.items()}
correlations = {name: float(np.corrcoef(base.ravel(), u.ravel())[0, 1]) * base.size**0.5
                for name, u in others.items()}
keys = keys_of(2**18).numpy()
many = keyed.uniform(keys_of(2), (2**21,), 0).numpy()
done([even, pairs, correlations, [len(np.unique(k)) for k in keys.T],
      [float(many.min()), float(many.max()), float(many.mean())]])
"""


def test_numbers_are_even_and_independent(tf_python: str) -> None:
    even, pairs, correlations, keys, (least, most, mean) = result_of(tf_python, START + STATISTICS)
    assert len(pairs) == 9
    for name, values in even.items():
        assert all(within(value, 255) for value in values), (name, values)
    for name, value in pairs.items():
        assert within(value, 255), (name, value)
    for name, value in correlations.items():
        assert abs(value) < 5, (name, value)
    assert keys == [2**18, 2**18]
    assert 0 <= least < 1e-5
    assert 1 - 1e-5 < most < 1
    assert mean == pytest.approx(0.5, abs=1e-3)


SPLIT = """
whole = keys_of(12)
numbers, images = keyed.uniform(whole, (5, 3), 1), tf.random.uniform((12, 9, 7, 3))
moved, equal = order.crop_flip(images, whole), []
for sizes in ([12], [6, 6], [4, 4, 4], [1] * 12, [1, 2, 9]):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    keys = [keys_of(n, first=s) for n, s in zip(sizes, starts)]
    shares = [keyed.uniform(k, (5, 3), 1) for k in keys]
    crops = [order.crop_flip(images[s:s + n], k) for n, s, k in zip(sizes, starts, keys)]
    equal += [bool(tf.reduce_all(tf.concat(shares, 0) == numbers)),
              bool(tf.reduce_all(tf.concat(crops, 0) == moved))]
done(equal)
"""


def test_shares_of_a_batch_give_the_numbers_of_the_whole(tf_python: str) -> None:
    assert result_of(tf_python, START + SPLIT) == [True] * 10


# ---------------------------------------------------------------------------------- dropout

DROPOUT = """
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
layer, other = keyed.Dropout(0.3, stream=2), keyed.Dropout(0.3, stream=3)
keys, inputs = keys_of(64), 1 + tf.random.uniform((64, 20, 50))

def call(inputs, keys, layer=layer):
    with keyed.keys_for_layers(keys):
        return layer(inputs, training=True)

out = call(inputs, keys)
kept = out.numpy() != 0
alike = float((kept == (call(inputs, keys, other).numpy() != 0)).mean())
numbers = {"kept": float(kept.mean()), "alike": alike, "mean": float(tf.reduce_mean(out / inputs)),
           "scale": [float(np.unique(np.round((out / inputs).numpy()[kept], 4)).min()),
                     float(np.unique(np.round((out / inputs).numpy()[kept], 4)).max())],
           "least of a sample": float(kept.mean(axis=(1, 2)).min())}

replicas = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
@tf.function
def both(inputs, keys):
    of = lambda whole: replicas.experimental_distribute_values_from_function(
        lambda context: whole[32 * context.replica_id_in_sync_group:][:32])
    return replicas.experimental_local_results(replicas.run(call, (of(inputs), of(keys))))
def same(outputs):
    return bool(tf.reduce_all(outputs == out))
loose = tf.function(call, input_signature=[
    tf.TensorSpec([None, None, 50]), tf.TensorSpec([None, 2], tf.uint32)])

def refusal(make):
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

tf.keras.mixed_precision.set_global_policy("mixed_float16")
half = keyed.Dropout(0.3, stream=2)
tf.keras.mixed_precision.set_global_policy("float32")
done([numbers, {
    "replicas": same(tf.concat(both(inputs, keys), 0)),
    "again": same(call(inputs, keys)),
    "loose shape": same(loose(inputs, keys)),
    "xla": same(tf.function(call, jit_compile=True)(inputs, keys)),
    "made anew": same(call(inputs, keys, keyed.Dropout.from_config(layer.get_config()))),
    "inference": bool(tf.reduce_all(layer(inputs) == inputs)),
    "rate 0": bool(tf.reduce_all(call(inputs, keys, keyed.Dropout(0, stream=0)) == inputs)),
    "half": call(inputs, keys, half).dtype == tf.float16,
    "half's mask": bool(((call(inputs, keys, half).numpy() != 0) == kept).all()),
}, [refusal(lambda: layer(inputs, training=True)), refusal(lambda: call(inputs, keys[:1])),
    refusal(lambda: keyed.Dropout(1.0, stream=0)), refusal(lambda: keyed.Dropout(0.5, stream=-1))],
])
"""


@pytest.mark.parametrize("keras", [2, 3])
def test_dropout_is_by_sample(tf_python: str, keras: int) -> None:
    numbers, held, refusals = result_of(tf_python, START + DROPOUT, keras=keras)
    # 64000 positions: five standard deviations are 0.009.
    assert numbers["kept"] == pytest.approx(0.7, abs=0.009)
    assert numbers["mean"] == pytest.approx(1, abs=0.013)
    assert numbers["alike"] == pytest.approx(0.7**2 + 0.3**2, abs=0.01)
    assert numbers["least of a sample"] > 0.7 - 5 * (0.21 / 1000) ** 0.5
    assert numbers["scale"] == pytest.approx([1 / 0.7, 1 / 0.7], abs=1e-4)
    assert held == dict.fromkeys(held, True)
    outside, few, rate, stream = refusals
    assert "called with training=True outside of keys_for_layers" in outside
    assert few.startswith("InvalidArgumentError")
    assert rate == "ValueError: dropout rate 1.0 is not from 0 to less than 1"
    assert stream == "ValueError: dropout stream -1 is less than 0"


SAVE = """
layers = tf.keras.layers
tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
inner = tf.keras.Sequential([tf.keras.Input((6,)), layers.Dense(5), layers.BatchNormalization(),
                             keyed.Dropout(0.5, stream=1)])
inputs = tf.keras.Input((6,))
model = tf.keras.Model(inputs, layers.Add()([inner(inputs), keyed.Dropout(0.25, stream=0)(
    layers.Dense(5)(inputs))]))
plain = tf.keras.Sequential([tf.keras.Input((6,)), layers.Dense(5)])
model.set_weights([tf.random.uniform(w.shape) for w in model.get_weights()])
keyed.exportable(model).save(sys.argv[1])
rows = tf.reshape(tf.range(12.0), (2, 6))
done([keyed.exportable(plain) is plain, tf.cast(model(rows), tf.float32).numpy().tolist()])
"""

LOAD = """
model = tf.keras.models.load_model(sys.argv[1])
rows = tf.reshape(tf.range(12.0), (2, 6))
def of(layer):
    inner = getattr(layer, "layers", [])
    return [d for i in inner for d in of(i)] + [layer] * (type(layer) is tf.keras.layers.Dropout)
outputs = tf.cast(model(rows), tf.float32).numpy().tolist()
done([outputs, sorted(layer.rate for layer in of(model)),
    "training" in sys.modules, len(model(rows, training=True))])
"""


@pytest.mark.parametrize("keras", [2, 3])
def test_exported_model_loads_without_the_project(
    tf_python: str, tmp_path: Path, keras: int
) -> None:
    path = str(tmp_path / "model.keras")
    itself, outputs = result_of(tf_python, START + SAVE, path, keras=keras)
    assert itself
    loaded = result_of(tf_python, LOAD, path, keras=keras, project=False)
    assert loaded == [outputs, [0.25, 0.5], False, 2]


# ---------------------------------------------------------------------------------- augmentation

CROP = """
SIDE, PAD, COUNT = 9, 4, 2**15
# A pixel's number stands in it, so that each image tells how it was moved and flipped.
image = 1 + tf.reshape(tf.range(SIDE * SIDE), [1, SIDE, SIDE, 1])
images = tf.repeat(image, COUNT, axis=0)
moved = order.crop_flip(images, keys_of(COUNT))
middle = moved.numpy()[:, SIDE // 2, SIDE // 2, 0] - 1
down, right = middle // SIDE - SIDE // 2, middle % SIDE - SIDE // 2

padded = np.pad(image[0].numpy(), [[PAD, PAD], [PAD, PAD], [0, 0]])
exact = 0
for n in range(500):
    top, left = PAD + down[n], PAD + right[n]
    crop = padded[top:top + SIDE, left:left + SIDE]
    exact += bool((moved[n].numpy() == crop).all() | (moved[n].numpy() == crop[:, ::-1]).all())

crops = np.bincount((down + PAD) * 9 + right + PAD, minlength=81)
still = order.crop_flip(images[:200], keys_of(200), pad=0).numpy()
alike = [bool((s == image[0].numpy()).all()) for s in still]
turned = [bool((s == image[0].numpy()[:, ::-1]).all()) for s in still]
wide = order.crop_flip(tf.ones([3, 5, 8, 2], tf.uint8), keys_of(3), pad=1)
done([exact, crops.tolist(), sum(alike), sum(turned), str(moved.dtype), list(moved.shape),
      str(wide.dtype), list(wide.shape)])
"""


def test_crops_and_flips_are_those_of_the_paper_and_equally_likely(tf_python: str) -> None:
    result: list[Any] = result_of(tf_python, START + CROP)
    exact, crops, alike, turned, *forms = result
    assert exact == 500
    assert len(crops) == 81
    expected = 2**15 / 81
    assert within(sum((count - expected) ** 2 / expected for count in crops), 80)
    assert alike + turned == 200
    assert abs(turned - 100) <= 35
    assert forms == ["<dtype: 'int32'>", [2**15, 9, 9, 1], "<dtype: 'uint8'>", [3, 5, 8, 2]]


# ---------------------------------------------------------------------------------- order


ORDER = """
from training import order

def epoch_of(size, seed, epoch):
    # The whole epoch is one batch.
    zero = tf.constant(0, tf.int64)
    whole = tf.function(lambda step: order.indices(seed, size, size, step, zero, size))
    return whole(tf.constant(epoch, tf.int64)).numpy()

def most_common_step(places):
    return int(np.bincount(np.diff(places) + len(places)).max())

result = {}
draw = np.random.default_rng(0)

# Neighbours: how often the most common difference between them occurs.
for size in (1437, 50_000):
    epochs = [epoch_of(size, 0, epoch) for epoch in range(8)]
    result[f"whole {size}"] = all(sorted(found) == list(range(size)) for found in map(list, epochs))
    result[f"steps {size}"] = [most_common_step(found) for found in epochs]
    result[f"uniform steps {size}"] = [most_common_step(draw.permutation(size)) for _ in range(8)]

# Epochs and seeds that lie far apart, or next to each other.
size = 1437
base = epoch_of(size, 0, 0)
far = [(0, 256), (256, 0), (0, 65536), (65536, 0), (0, 1), (1, 0), (1, 1), (1_000_000_000, 0)]
result["alike"] = [float((base == epoch_of(size, *other)).mean()) for other in far]

# Where the examples of an epoch stand in the next one.
places = [np.argsort(epoch_of(size, 3, epoch)) for epoch in range(24)]
result["correlations"] = [
    float(np.corrcoef(one, other)[0, 1]) for one, other in zip(places, places[1:])
]

# The first example over seeds and over epochs, in bins of the same size: chi-square.
def chi_square(firsts, bins, size):
    seen = np.histogram(firsts, bins=bins, range=(0, size))[0]
    return float(((seen - len(firsts) / bins) ** 2 / (len(firsts) / bins)).sum())

size, bins = 1000, 10
first = tf.function(
    lambda step: order.indices(7, size, size, step, tf.constant(0, tf.int64), 1)
)
result["over epochs"] = chi_square(
    [int(first(tf.constant(epoch, tf.int64))[0]) for epoch in range(1000)], bins, size
)
zero = tf.constant(0, tf.int64)
result["over seeds"] = chi_square(
    [int(order.indices(seed, size, size, zero, zero, 1)[0]) for seed in range(1000)], bins, size
)
done(result)
"""


@pytest.fixture(scope="module")
def order(tf_python: str) -> Any:
    """What the script ORDER has found."""
    return result_of(tf_python, ORDER)


@pytest.mark.parametrize("size", [1437, 50_000])
def test_neighbours_of_an_epoch_differ_as_in_a_uniform_permutation(order: Any, size: int) -> None:
    assert order[f"whole {size}"]
    # One more than the largest of eight of numpy's: these are maxima over tens of thousands.
    assert max(order[f"steps {size}"]) <= max(order[f"uniform steps {size}"]) + 1


def test_no_two_epochs_or_seeds_have_an_order_in_common(order: Any) -> None:
    # Of 1437 examples one stands where it stood, in the mean; ten would be one run in a million.
    assert max(order["alike"]) < 10 / 1437


def test_an_epoch_says_nothing_of_the_next_one(order: Any) -> None:
    limit = 4 / 1437**0.5
    assert all(abs(correlation) < limit for correlation in order["correlations"])


@pytest.mark.parametrize("over", ["epochs", "seeds"])
def test_any_example_may_be_the_first(order: Any, over: str) -> None:
    # Nine degrees of freedom: more than 33.7 is one run in ten thousand.
    assert order[f"over {over}"] < 33.7
