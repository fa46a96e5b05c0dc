"""A task of a small cluster with parameter servers.

Its arguments are the number of steps and the start timeout. The last line of the chief has the
process and the Unix time of each step.
"""

import json
import os
import sys
import traceback

import tensorflow as tf
from host.rank_environment import ENV_GRPC, GRPC_OPTIONS
from host.progress_records import ProgressWriter
from tensorflow.python.data.experimental.ops import testing
from training import gang, servers
from training.cluster import TrainingError, read_tf_config

CLOSURE_US = 50_000
servers.LIMIT_S, servers.WORKERS_LIMIT_S = 3.0, 15.0


def endless(context):
    """Return examples that take 50 ms each and name the process and worker that made them."""
    made = tf.data.Dataset.range(1_000_000).apply(testing.sleep(CLOSURE_US))
    return made.map(lambda _: (tf.io.read_file("/proc/self/stat"), tf.timestamp()))


def lead(cluster, closures, timeout):
    watch = servers.Watch(servers.await_servers(cluster, timeout))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    watch.follow(coordinator)
    with strategy.scope():
        total = tf.Variable(0)
    examples = iter(
        coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(endless)
        )
    )

    @tf.function
    def step(examples):
        stat, at = next(examples)
        total.assign_add(1)
        return stat, at

    with gang.named_peer_errors(cluster):
        results = [coordinator.schedule(step, args=(examples,)) for _ in range(closures)]
        print("scheduled", flush=True)
        coordinator.join()
        made = [result.fetch() for result in results]
        assert total.numpy() >= closures
    watch.shutdown()
    print(json.dumps([(int(stat.split()[0]), float(at)) for stat, at in made]), flush=True)


def run(closures, timeout="180"):
    os.environ[ENV_GRPC] = GRPC_OPTIONS
    cluster = read_tf_config(os.environ)
    try:
        if cluster.is_server:
            servers.serve(cluster, ProgressWriter(min_interval=0), float(timeout))
        else:
            lead(cluster, int(closures), float(timeout))
    except TrainingError as error:
        print(f"TrainingError: {error}", flush=True)
        return 1
    except BaseException:
        traceback.print_exc()
        return 99
    return 0


os._exit(run(*sys.argv[1:]))
