"""Random numbers that depend only on the seed, the step and the example.

Each example of a step has its own keys. Random numbers are hashes of these keys, computed with
MurmurHash3's finalizer (Austin Appleby, public domain), modulo 2**32. They have the same bits on
CPU and GPU, with and without XLA, for any share of the batch, and after any restart.

The numbers are for dropout and augmentation, not for secrets.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import tensorflow as tf

#: Streams from here on are for layers; add the layer's number.
LAYER_STREAMS = 1 << 16

#: Initial values of the chains that make the words of a key: digits of pi and e and, for the order
#: of an epoch, of the square roots of 2, 3 and 5.
_STARTS = (0x243F6A88, 0xB7E15162)
_ORDER_STARTS = (0x6A09E667, 0xBB67AE85, 0x3C6EF372)
_GOLDEN = 0x9E3779B9
_WORD = 0xFFFFFFFF


def word(number: int) -> Any:
    """Return the low 32 bits of a whole number as uint32."""
    return tf.constant(number & _WORD, tf.uint32)


def mix(words: Any) -> Any:
    """Return MurmurHash3's fmix32 of each number."""
    # Multiplication of uint32 wraps around on every device; int32 would be computed on the host.
    shift, xor = tf.bitwise.right_shift, tf.bitwise.bitwise_xor
    words = xor(words, shift(words, word(16))) * word(0x85EBCA6B)
    words = xor(words, shift(words, word(13))) * word(0xC2B2AE35)
    return xor(words, shift(words, word(16)))


def _absorb(state: Any, words: Any) -> Any:
    # The constant keeps a number that equals the state from giving 0.
    return mix(tf.bitwise.bitwise_xor(state, words) + word(_GOLDEN))


def _halves(numbers: Any) -> tuple[Any, Any]:
    """Return the low and the high 32 bits of int64 as uint32."""
    low = tf.bitwise.bitwise_and(numbers, _WORD)
    high = tf.bitwise.bitwise_and(tf.bitwise.right_shift(numbers, 32), _WORD)
    return tf.cast(low, tf.uint32), tf.cast(high, tf.uint32)


def sample_keys(seed: int, step: Any, indices: Any) -> Any:
    """Return the keys, uint32 [n, 2], of the examples at ``indices`` [n] in a step.

    In a data set of up to 2**32 examples, no number occurs twice in a column of a step's keys.
    ``seed`` has up to 64 bits.
    """
    step, indices = tf.cast(step, tf.int64), tf.cast(indices, tf.int64)
    words = [word(seed), word(seed >> 32), *_halves(step), *_halves(indices)]
    return tf.stack([reduce(_absorb, words, word(start)) for start in _STARTS], axis=-1)


def order_key(seed: int, epoch: Any) -> Any:
    """Return the key of an epoch's permutation, uint32 of shape [3]."""
    words = [word(seed), word(seed >> 32), *_halves(tf.cast(epoch, tf.int64))]
    return tf.stack([reduce(_absorb, words, word(start)) for start in _ORDER_STARTS])


def uniform(keys: Any, shape: Sequence[Any], stream: int) -> Any:
    """Return uniform random numbers in [0, 1), multiples of 2**-24: float32 [n, *shape].

    ``keys`` are from ``sample_keys``. ``shape`` contains numbers or int32 scalars, whose product
    must not exceed 2**32. ``stream``, from 0 to 2**32 - 1, is a different number for each
    independent use of the same keys.
    """
    # The range is cast because TensorFlow does not support uint32 ranges on every device.
    counters = tf.cast(tf.range(tf.reduce_prod(tf.cast([1, *shape], tf.int64))), tf.uint32)
    own = _absorb(keys, word(stream))
    bits = _absorb(_absorb(own[:, :1], counters[tf.newaxis]), own[:, 1:])
    numbers = tf.cast(tf.bitwise.right_shift(bits, word(8)), tf.float32) * 2.0**-24
    return tf.reshape(numbers, [-1, *shape])


#: Its attribute ``keys`` has the keys of the samples for which this thread calls a model. Each
#: replica has its own thread.
_current = threading.local()


@contextmanager
def keys_for_layers(keys: Any) -> Iterator[None]:
    """Provide keys, a row for each sample, to Dropout layers that are called in this context."""
    before, _current.keys = getattr(_current, "keys", None), keys
    try:
        yield
    finally:
        _current.keys = before


@tf.keras.utils.register_keras_serializable("training")
class Dropout(tf.keras.layers.Dropout):  # type: ignore[misc]
    """Keras' Dropout with random numbers that depend on each sample's keys.

    A model with this layer must be trained within ``keys_for_layers``. To save it, use the model
    that ``exportable`` returns. ``rate`` and ``noise_shape`` are as in Keras. ``stream`` is the
    layer's number, from 0: layers of a model with the same number drop the same positions.
    """

    def __init__(
        self,
        rate: float,
        stream: int,
        noise_shape: Sequence[int | None] | None = None,
        **options: Any,
    ) -> None:
        if not 0 <= rate < 1:
            raise ValueError(f"dropout rate {rate} must be at least 0 and less than 1")
        if stream < 0:
            raise ValueError(f"dropout stream {stream} is negative")
        if noise_shape is not None and noise_shape[0] is not None:
            raise ValueError(f"dropout noise_shape {noise_shape} does not begin with None")
        super().__init__(rate, noise_shape, **options)
        self.stream = stream

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the inputs, some of which are dropped if ``training`` is set.

        Raise RuntimeError if this is called for training outside of ``keys_for_layers``.
        """
        if not training or self.rate == 0:
            return inputs
        keys = getattr(_current, "keys", None)
        if keys is None:
            raise RuntimeError(
                f"layer {self.name} was called with training=True outside of "
                "keys_for_layers, so the samples are unknown"
            )
        own, found = inputs.shape.as_list(), tf.shape(inputs)
        if self.noise_shape is not None:
            lengths = zip(own, self.noise_shape, strict=True)
            own = [length if asked is None else asked for length, asked in lengths]
        shape = [found[n] if length is None else length for n, length in enumerate(own)]
        numbers = uniform(keys, shape[1:], LAYER_STREAMS + self.stream)
        # The reshape fails if the numbers of keys and samples differ.
        kept = tf.reshape(numbers, [found[0], *shape[1:]]) >= self.rate
        # A product is rounded the same everywhere; XLA may turn a quotient into another product.
        return tf.where(kept, inputs * (1 / (1 - self.rate)), tf.zeros_like(inputs))

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which Keras can rebuild the layer."""
        return {**super().get_config(), "stream": self.stream}


def exportable(model: Any) -> Any:
    """Return a copy of a model with Keras' own Dropout, so that it can be loaded without this code.

    The weights are not copied. A model without a Dropout of this module is returned unchanged.
    Raise ValueError if ``check_exportable`` does.
    """
    check_exportable(model)
    return _twin(model) if _has_dropout(model) else model


def check_exportable(model: Any) -> None:
    """Raise ValueError if a subclassed model, whose layers cannot be replaced, has a Dropout."""
    if not _has_dropout(model) or isinstance(model, Dropout):
        return
    if is_subclassed(model):
        raise ValueError(
            f"the subclassed model {model.name} uses training.keyed.Dropout, which can be replaced "
            "by Keras' own only in a Sequential or functional model"
        )
    for layer in model.layers:
        check_exportable(layer)


def is_subclassed(model: Any) -> bool:
    """Return whether a model's layers are called by its own code, not by Keras."""
    functional = tf.keras.Sequential.__base__
    return not isinstance(model, functional)


def _has_dropout(layer: Any) -> bool:
    inner = getattr(layer, "layers", ()) if isinstance(layer, tf.keras.Model) else ()
    return isinstance(layer, Dropout) or any(map(_has_dropout, inner))


def _twin(layer: Any) -> Any:
    if isinstance(layer, Dropout):
        config = layer.get_config()
        del config["stream"]
        return tf.keras.layers.Dropout.from_config(config)
    if _has_dropout(layer):
        return tf.keras.models.clone_model(layer, clone_function=_twin)
    return type(layer).from_config(layer.get_config())
