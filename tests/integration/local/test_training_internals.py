"""The private names of TensorFlow on which training.tensorflow_internals relies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import free_port
from tests.support.training_script import inside, modules, np, tf

[internals] = modules("training.tensorflow_internals")

pytestmark = pytest.mark.tensorflow


@inside
def test_the_start_is_bounded_without_a_note() -> None:
    import contextlib
    import io

    from tensorflow.python.eager import context

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        internals.bound_start("worker", {"worker": 3}, start_timeout=2.5, heartbeat_s=7)
    assert said.getvalue() == ""
    config = context.context()._coordination_service_config
    assert config.cluster_register_timeout_in_ms == 2500
    assert config.heartbeat_timeout_in_ms == 7000
    assert config.cluster_register_with_barrier
    assert config.service_leader == "/job:worker/replica:0/task:0"
    assert [(job.name, job.num_tasks) for job in config.coordinated_job_list] == [("worker", 3)]


@inside
def test_moving_averages_are_of_the_trainable_variables_in_order() -> None:
    variables = [tf.Variable([1.0, 2.0]), tf.Variable([[3.0]])]
    plain = tf.keras.optimizers.SGD(1.0)
    averaging = tf.keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    scaling = tf.keras.mixed_precision.LossScaleOptimizer(averaging)
    for optimizer in (plain, scaling):
        optimizer.build(variables)
    assert internals.moving_averages(plain) == []
    before = [average.numpy() for average in internals.moving_averages(averaging)]
    averaging.apply_gradients(zip([tf.ones([2]), tf.ones([1, 1])], variables, strict=True))
    for optimizer in (averaging, scaling):
        averages = internals.moving_averages(optimizer)
        for average, old, variable in zip(averages, before, variables, strict=True):
            np.testing.assert_allclose(average, 0.5 * old + 0.5 * variable.numpy())


@inside
def test_the_loss_scale_is_a_variable_that_can_be_set() -> None:
    assert internals.loss_scale_variables(tf.keras.optimizers.SGD(1.0)) == []
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1.0))
    optimizer.build([tf.Variable(1.0)])
    counter, scale = internals.loss_scale_variables(optimizer)
    assert counter.numpy() == 0
    assert scale.numpy() == optimizer.loss_scale.numpy()
    scale.assign(8.0)
    assert optimizer.loss_scale.numpy() == 8


@inside
def test_a_coordinator_has_lost_no_worker_until_it_marks_one() -> None:
    addresses = {job: [f"localhost:{free_port()}"] for job in ("worker", "ps")}
    for job in addresses:
        tf.distribute.Server(addresses, job, 0, "grpc")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(addresses), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    assert internals.lost_workers(coordinator) == set()
    [worker] = coordinator._cluster.workers
    assert worker._is_dead_with_error is None
    worker._is_dead_with_error = tf.errors.UnavailableError(None, None, "away")
    assert internals.lost_workers(coordinator) == {0}
    # Without a coordinator, no worker counts as lost.
    assert internals.lost_workers(None) == set()


@inside
def test_an_event_that_is_no_summary_is_written(tmp_path: Path) -> None:
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    event = tf.compat.v1.Event(wall_time=1.0, step=7, session_log=start)
    writer = tf.summary.create_file_writer(str(tmp_path))
    internals.write_event(writer, event.SerializeToString())
    writer.close()
    [path] = tmp_path.iterdir()
    written = [each for each in tf.compat.v1.train.summary_iterator(str(path)) if each.step]
    assert [(each.step, each.session_log.status) for each in written] == [(7, start.status)]
