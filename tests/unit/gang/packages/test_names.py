"""The names of packages by their modules."""

from __future__ import annotations

import pytest

from tests.unit.gang.packages.conftest import Lab
from train.gang.packages.names import package_of


@pytest.mark.parametrize(
    ("module", "text", "name"),
    [
        ("sklearn", "alpha", "scikit-learn"),
        ("cv2", "opencv-python==4.10", "opencv-python"),
        ("tensorflow_datasets", "Tensorflow.Datasets", "Tensorflow.Datasets"),
        ("some_module", "alpha", "some-module"),
    ],
)
def test_the_package_of_a_module(lab: Lab, module: str, text: str, name: str) -> None:
    assert package_of(module, lab.read(text)) == name
