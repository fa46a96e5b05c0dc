"""The parts of the training step and their invariants."""

from __future__ import annotations

import threading
import time
import types
from typing import Any

import pytest

from tests.support.training_script import inside, modules, np, replicas_of_cpu, tf

dependencies, exchange = modules("training.dependencies", "training.exchange")
objective, settings, step = modules("training.objective", "training.settings", "training.step")
replica_sums, step_runner = modules("training.replica_sums", "training.step_runner")

pytestmark = pytest.mark.tensorflow

BATCH, REPLICAS = 16, 2


def adding_layer() -> Any:
    """Return a layer that adds a loss: the mean square of its inputs."""

    class Added(tf.keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            self.add_loss(0.1 * tf.reduce_mean(tf.square(inputs)))
            return inputs

    return Added()


def make_step(*, norm: bool = False, shares: int = 1, optimizer: Any = None, **options: Any) -> Any:
    """Return a TrainStep of a small network with a regularizer, optionally with BatchNorm."""
    layers, kernels = tf.keras.layers, tf.keras.initializers.GlorotUniform
    model = tf.keras.Sequential(
        [
            tf.keras.Input([5]),
            layers.Dense(6, "relu", kernel_initializer=kernels(1), kernel_regularizer="l2"),
            layers.BatchNormalization(momentum=0.5) if norm else adding_layer(),
            layers.Dense(3, kernel_initializer=kernels(2)),
        ]
    )
    optimizer = optimizer or tf.keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    given = settings.Settings(batch_size=BATCH, **options)
    task = types.SimpleNamespace(
        settings=given, objective=objective.make_objective(given, 3, {}), prepare=lambda x: x
    )
    return step.TrainStep(task, model, optimizer, shares)


def examples(first: int = 0, count: int = BATCH) -> tuple[Any, Any, Any]:
    """Return a part of a fixed global batch: features, labels and keys."""
    drawn = np.random.default_rng(3).normal(size=(BATCH, 5)).astype(np.float32)
    chosen = slice(first, first + count)
    labels = tf.constant(np.arange(BATCH)[chosen] % 3)
    return tf.constant(drawn[chosen]), labels, tf.zeros([count, 2], tf.uint32)


def computed(train_step: Any, *batch: Any) -> tuple[list[Any], Any]:
    gradients, sums = tf.function(train_step.gradients, autograph=False)(*batch)
    return [gradient.numpy() for gradient in gradients], sums.numpy()


def weights(train_step: Any) -> list[Any]:
    return [variable.numpy() for variable in train_step.model.variables]


def local(strategy: Any, value: Any) -> list[Any]:
    """Return the replicas' values."""
    return [part.numpy() for part in strategy.experimental_local_results(value)]


# The gradients.


@inside
def test_gradients_of_replicas_add_up_to_that_of_the_mean_over_the_global_batch() -> None:
    whole, sums = computed(make_step(), *examples())
    part = make_step(shares=REPLICAS)
    size = BATCH // REPLICAS
    parts = [computed(part, *examples(first, size)) for first in range(0, BATCH, size)]
    # A loss on the model's inputs is a mean over the part, so the parts add up as well.
    for gradient, *divided in zip(whole, *(gradients for gradients, _ in parts), strict=True):
        np.testing.assert_allclose(sum(divided), gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sum(own for _, own in parts), sums, rtol=1e-5)
    assert part.names == ["loss", "accuracy"]


@inside
def test_parts_of_a_batch_have_its_gradients_with_and_without_xla() -> None:
    whole, sums = computed(make_step(), *examples())
    for options in ({"accumulate": 4}, {"accumulate": 4, "xla": True}, {"xla": True}):
        gradients, own = computed(make_step(**options), *examples())
        for expected, found in zip(whole, gradients, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(own, sums, rtol=1e-5)


@inside
def test_the_loss_is_that_of_the_examples_and_of_the_model() -> None:
    train_step = make_step()
    features, labels, keys = examples()
    _, sums = computed(train_step, features, labels, keys)
    logits = train_step.model(features, training=True)
    costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    expected = tf.reduce_mean(costs) + tf.add_n(train_step.model.losses)
    assert len(train_step.model.losses) == 2
    assert float(sums[0]) == pytest.approx(float(expected), rel=1e-5)


@inside
def test_parts_move_the_statistics_once_by_their_mean() -> None:
    parts = []
    for first in range(0, BATCH, 4):
        part = make_step(norm=True)
        computed(part, *examples(first, 4))
        parts.append([stat.numpy() for stat in part.batch_norm_stats])
    train_step = make_step(norm=True, accumulate=4)
    computed(train_step, *examples())
    assert len(train_step.batch_norm_stats) == 2
    for stat, *divided in zip(train_step.batch_norm_stats, *parts, strict=True):
        np.testing.assert_allclose(stat.numpy(), np.mean(divided, axis=0), rtol=1e-5, atol=1e-7)


@inside
def test_a_variable_that_the_loss_does_not_use_has_dense_zeros() -> None:
    train_step = make_step()
    loose = tf.Variable(tf.ones([2, 3]))
    train_step.model.loose = loose
    gradients, _ = computed(train_step, *examples())
    assert gradients[-1].tolist() == [[0.0] * 3] * 2
    assert {gradient.dtype for gradient in gradients} == {np.dtype(np.float32)}


@inside
def test_a_scaled_loss_has_the_gradients_and_the_sums_of_a_plain_one() -> None:
    whole, sums = computed(make_step(), *examples())
    scaling = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
    gradients, own = computed(make_step(optimizer=scaling), *examples())
    for expected, found in zip(whole, gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert own.tolist() == sums.tolist()


@inside
def test_the_update_clips_the_gradient_of_the_whole_batch() -> None:
    train_step = make_step(optimizer=tf.keras.optimizers.SGD(1.0), clip_norm=0.5)
    before = weights(train_step)
    train_step.apply([tf.ones(v.shape) for v in train_step.model.trainable_variables])
    moved = [old - new for old, new in zip(before, weights(train_step), strict=True)]
    assert np.sqrt(sum((change**2).sum() for change in moved)) == pytest.approx(0.5, rel=1e-5)


# The exchange.


def in_replicas(strategy: Any, own: Any, function: Any) -> list[list[Any]]:
    """Return the results of a function in each replica, called with that replica's arguments."""
    given = strategy.experimental_distribute_values_from_function(
        lambda context: own[context.replica_id_in_sync_group]
    )
    run = tf.function(lambda given: strategy.run(function, args=(given,)), autograph=False)
    return [local(strategy, result) for result in run(given)]


def in_ranks(own: list[Any], function: Any) -> list[Any]:
    """Return a function's result for each rank's argument; each rank is a thread and a device."""
    results: dict[int, Any] = {}

    def play(rank: int) -> None:
        with tf.device(f"cpu:{rank}"):
            results[rank] = [each.numpy() for each in function(own[rank])]

    ranks = [threading.Thread(target=play, args=(rank,), daemon=True) for rank in range(len(own))]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    return [results[rank] for rank in range(len(own))]


def drawn_gradients() -> tuple[list[list[Any]], list[Any]]:
    """Return four vectors for each of two replicas, and their sums."""
    draw = np.random.default_rng(1)
    own = [[draw.normal(size=n).astype(np.float32) for n in (1, 9, 2, 3)] for _ in range(REPLICAS)]
    return own, [np.sum(values, axis=0, dtype=np.float64) for values in zip(*own, strict=True)]


@inside
def test_an_exchange_gives_all_replicas_the_same_sums_in_order() -> None:
    strategy = replicas_of_cpu(REPLICAS)
    own, exact = drawn_gradients()
    ways = {
        1e-6: exchange.make_exchange(strategy, REPLICAS, "float32"),
        4e-2: exchange.make_exchange(strategy, REPLICAS, "bfloat16"),
    }
    for tolerance, way in ways.items():
        found = in_replicas(strategy, own, lambda values, way=way: way(values[:3], values[3:]))
        for (first, second), expected in zip(found, exact, strict=True):
            assert first.tobytes() == second.tobytes()
            np.testing.assert_allclose(first, expected, rtol=0, atol=tolerance)
        # A value that is not a gradient keeps all of its bits.
        np.testing.assert_allclose(found[-1][0], exact[-1], rtol=0, atol=1e-6)


@inside
def test_sums_that_are_rounded_once_are_in_order_and_the_same_bits_in_all_ranks() -> None:
    replicas_of_cpu(REPLICAS)
    own, exact = drawn_gradients()
    way = exchange.SumsRoundedOnce(tf.as_dtype("bfloat16"), REPLICAS)
    found = in_ranks(own, lambda values: way(list(map(tf.constant, values)), []))
    for first, second, expected in zip(*found, exact, strict=True):
        assert first.tobytes() == second.tobytes()
        np.testing.assert_allclose(first, expected, rtol=0, atol=4e-2)


@inside
def test_a_sum_with_fewer_bits_is_added_in_float32_and_rounded_once() -> None:
    replicas_of_cpu(3)
    # If added one by one in bfloat16, which has 8 bits, both small numbers would be lost.
    own = [[tf.constant([256.0, 1.0])], [tf.constant([1.0, 2.0])], [tf.constant([1.0, 4.0])]]
    way = exchange.SumsRoundedOnce(tf.as_dtype("bfloat16"), 3)
    found = in_ranks(own, lambda values: way(values, []))
    assert [sums.tolist() for [sums] in found] == [[258.0, 7.0]] * 3


@inside
def test_ranks_of_one_replica_on_a_cpu_round_a_sum_once() -> None:
    def chosen(devices: list[str], precision: str) -> Any:
        strategy = types.SimpleNamespace(extended=types.SimpleNamespace(worker_devices=devices))
        return exchange.make_exchange(strategy, 2, precision)

    assert isinstance(chosen(["/device:CPU:0"], "bfloat16"), exchange.SumsRoundedOnce)
    for devices in (["/device:GPU:0"], ["/device:CPU:0", "/device:CPU:1"]):
        assert isinstance(chosen(devices, "float16"), exchange.RoundedSums)
        assert not isinstance(chosen(devices, "float32"), exchange.RoundedSums)


@inside
def test_packs_hold_every_gradient_once_and_begin_with_the_last() -> None:
    values = [tf.zeros([size]) for size in (5, 60, 1, 2, 26, 3)]
    packs = exchange.packs(values, item_bytes=4, pack_bytes=100)
    assert [[value.shape[0] for value in pack] for pack in packs] == [[26, 3], [60, 1, 2], [5]]
    assert exchange.packs(values, item_bytes=2, pack_bytes=100)[0][0].shape[0] == 60


# The order in the graph.


def noted(order: list[str], name: str, seconds: float = 0.0) -> Any:
    """Return a tensor that is ready after some seconds; its name is then appended to ``order``."""

    def note() -> Any:
        time.sleep(seconds)
        order.append(name)
        return np.float32(seconds)

    return tf.ensure_shape(tf.numpy_function(note, [], tf.float32), [])


@inside
def test_held_values_are_the_same_and_used_after_what_they_wait_for() -> None:
    order: list[str] = []

    def graph(value: Any) -> Any:
        slow = noted(order, "slow", 0.2)
        values = dependencies.held([value, {"x": -value}], until=[slow])
        with dependencies.after(values):
            used = noted(order, "used")
        return values, slow, used

    [same, negated], *_ = tf.function(graph, autograph=False)(tf.constant(-0.0))
    assert order == ["slow", "used"]
    assert (str(same.numpy()), str(negated["x"].numpy())) == ("-0.0", "0.0")


@inside
def test_the_clock_is_read_when_values_are_ready_and_before_they_are_used() -> None:
    order: list[str] = []
    clock = dependencies.Clock(running=True)

    def graph() -> Any:
        began = clock.now()
        with dependencies.after(began):
            batch = noted(order, "batch", 0.2)
        waited = clock.since(began, batch)
        held = clock.held(batch, until=waited)
        with dependencies.after(held):
            gradient = noted(order, "gradient", 0.3)
        return waited, clock.when_computed([gradient]) - began, batch, gradient

    waited, total, *_ = (float(each) for each in tf.function(graph, autograph=False)())
    assert order == ["batch", "gradient"]
    assert 0.2 <= waited < 0.2 + 0.3 <= total


@inside
def test_a_clock_that_stands_still_orders_nothing() -> None:
    clock = dependencies.Clock(running=False)

    def graph(value: Any) -> Any:
        held = clock.held(value, until=clock.since(clock.now(), value))
        assert held is value
        return clock.when_computed([value])

    concrete = tf.function(graph, autograph=False).get_concrete_function(tf.TensorSpec([2]))
    assert not [op for op in concrete.graph.get_operations() if op.type == "Timestamp"]
    assert float(concrete(tf.zeros([2]))) == 0


# Sums and calls.


@inside
def test_sums_are_each_replicas_own_until_they_are_taken() -> None:
    strategy = replicas_of_cpu(REPLICAS)
    sums = replica_sums.ReplicaSums(strategy, 2)
    own = [[tf.constant([1.0, 2.0])], [tf.constant([10.0, 20.0])]]

    def add_twice(values: Any) -> Any:
        sums.add(values[0])
        sums.add(tf.cast(values[0], tf.float32) * 2.0**-40)
        return [sums.take(), sums.take()]

    taken, again = in_replicas(strategy, own, add_twice)
    # In float32, the second addition would be lost.
    expected = [[1 + 2.0**-40, 2 + 2.0**-39], [10 * (1 + 2.0**-40), 20 * (1 + 2.0**-40)]]
    assert [each.tolist() for each in taken] == expected
    assert [each.tolist() for each in again] == [[0.0, 0.0]] * REPLICAS


def make_runner(strategy: Any, **options: Any) -> tuple[Any, Any]:
    """Return a StepRunner with BatchNorm on two replicas, and its TrainStep."""
    with strategy.scope():
        train_step = make_step(norm=True, shares=REPLICAS, **options)

    def fetch(number: Any, replica: Any) -> Any:
        size = BATCH // REPLICAS
        features, labels, keys = examples()
        first = replica * size
        shift = tf.cast(number, tf.float32) / 10
        return features[first:][:size] + shift, labels[first:][:size], keys[:size]

    way = exchange.make_exchange(strategy, 1, "float32")
    return step_runner.StepRunner(strategy, train_step, fetch, way, is_chief=True), train_step


@inside
def test_steps_in_one_call_or_in_many_leave_the_same_bits_in_all_replicas() -> None:
    strategy = replicas_of_cpu(REPLICAS)
    at_once, train_step = make_runner(strategy)
    one_by_one, other_step = make_runner(strategy)
    together = at_once(0, 5, asked=False, due=False)
    each = [one_by_one(number, 1, asked=False, due=False) for number in range(5)]
    pairs = zip(train_step.model.variables, other_step.model.variables, strict=True)
    for pair in pairs:
        values = [value for variable in pair for value in local(strategy, variable)]
        assert len({value.tobytes() for value in values}) == 1
    assert together.sums == {
        name: sum(outcome.sums[name] for outcome in each) for name in together.sums
    }
    assert together.steps == 5
    assert together.loss != each[0].loss


@inside
def test_a_rank_counts_once_and_times_are_of_the_call() -> None:
    runner, _ = make_runner(replicas_of_cpu(REPLICAS))
    asked = runner(0, 2, asked=True, due=False)
    due = runner(2, 1, asked=False, due=True)
    assert [(outcome.asked, outcome.due) for outcome in (asked, due)] == [(1, False), (0, True)]
    for outcome in (asked, due):
        assert outcome.input_s is not None
        assert 0 <= outcome.input_s < 10
        assert 0 <= outcome.exchange_s < 10


@inside
def test_a_deterministic_call_has_no_times() -> None:
    runner, _ = make_runner(replicas_of_cpu(REPLICAS), deterministic=True)
    outcome = runner(0, 2, asked=False, due=False)
    assert (outcome.input_s, outcome.exchange_s) == (None, None)
