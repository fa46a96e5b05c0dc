"""The residual networks for CIFAR-10 of He et al. 2015."""

import tensorflow as tf

layers = tf.keras.layers
L2 = tf.keras.regularizers.L2(1e-4)


def conv(x, filters, size=3, strides=1):
    """Return a convolution followed by batch normalization."""
    x = layers.Conv2D(
        filters,
        size,
        strides=strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=L2,
    )(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def block(x, filters, strides):
    """Return a residual block of two convolutions."""
    y = layers.ReLU()(conv(x, filters, strides=strides))
    y = conv(y, filters)
    if strides > 1:
        x = conv(x, filters, size=1, strides=strides)
    return layers.ReLU()(layers.Add()([x, y]))


def resnet(depth):
    """Return the network of 6n + 2 layers, from images [n, 32, 32, 3] to logits [n, 10]."""
    inputs = tf.keras.Input((32, 32, 3))
    x = layers.ReLU()(conv(inputs, 16))
    for filters in (16, 32, 64):
        for number in range((depth - 2) // 6):
            x = block(x, filters, 2 if filters > 16 and number == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(10, kernel_initializer="he_normal", kernel_regularizer=L2)(x)
    return tf.keras.Model(inputs, outputs)
