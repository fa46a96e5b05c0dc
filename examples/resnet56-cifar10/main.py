"""ResNet-56 on CIFAR-10 with several workers: He et al. 2015, section 4.2, with Keras fit."""

import argparse
import os

import cifar10
import resnet
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--data-dir", help="folder that contains cifar-10-batches-py (default: synthetic images)"
)
parser.add_argument("--epochs", type=int, default=182)
parser.add_argument("--steps-per-epoch", type=int, help="maximum (default: all images)")
parser.add_argument("--batch-size", type=int, default=128, help="global batch size")
parser.add_argument("--depth", type=int, default=56, help="6n + 2: 20, 32, 44, 56 or 110")
args = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()

if args.batch_size % strategy.num_replicas_in_sync:
    parser.error(f"--batch-size has to be a multiple of {strategy.num_replicas_in_sync}")
train, steps, test = cifar10.datasets(args.data_dir, args.batch_size)
steps = min(steps, args.steps_per_epoch or steps)


def schedule(epoch):
    """Return the learning rate: a tenth after 91 epochs, a hundredth after 136."""
    rate = 0.1 * args.batch_size / 128
    return rate * (1 if epoch < 91 else 0.1 if epoch < 136 else 0.01)


with strategy.scope():
    model = resnet.resnet(args.depth)
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(
    train,
    epochs=args.epochs,
    steps_per_epoch=steps,
    validation_data=test.take(steps),
    callbacks=[
        tf.keras.callbacks.LearningRateScheduler(schedule),
        tf.keras.callbacks.TensorBoard(os.environ.get("TRAIN_TENSORBOARD_DIR", "tensorboard")),
    ],
    verbose=2,
)

if not args.data_dir:
    print("trained on synthetic images: loss and accuracy are not those of CIFAR-10")
