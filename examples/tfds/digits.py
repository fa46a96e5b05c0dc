"""A TensorFlow Datasets data set that needs no download: the training program's digits."""

from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

DIGITS = Path(__file__).parents[2] / "train/training/data/digits.csv.gz"


class Digits(tfds.core.GeneratorBasedBuilder):
    """A data set of 1,797 images of 8 by 8 pixels."""

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
        table = np.loadtxt(DIGITS, delimiter=",", dtype=np.uint8)
        for number in range(first, last):
            image = table[number, :-1].reshape(8, 8, 1) * 15
            yield number, {"image": image, "label": int(table[number, -1])}
