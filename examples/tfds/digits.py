"""A data set for TensorFlow Datasets that needs no download: scikit-learn's handwritten digits."""

import numpy as np
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits


class Digits(tfds.core.GeneratorBasedBuilder):
    """1,797 images of 8 by 8 pixels."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(8, 8, 1)),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(0, 1500),
            "test": self._generate_examples(1500, 1797),
        }

    def _generate_examples(self, first, last):
        digits = load_digits()
        for number in range(first, last):
            image = (digits.images[number] * 15).astype(np.uint8)[..., None]
            yield number, {"image": image, "label": int(digits.target[number])}
