"""The frameworks of training scripts (``train_job_framework``)."""

from __future__ import annotations

TENSORFLOW = "tensorflow"
JAX = "jax"
TORCH = "torch"
NONE = "none"  # any program
FRAMEWORKS = (TENSORFLOW, JAX, TORCH, NONE)
#: The names of the frameworks in messages.
NAMES = {TENSORFLOW: "TensorFlow", JAX: "JAX", TORCH: "PyTorch"}
#: Frameworks whose ranks all connect to the first one, which alone listens on its port.
WITH_ONE_LISTENER = (JAX, TORCH)
#: Packages whose versions must be the same in all ranks. The first one is the framework itself.
PACKAGES = {JAX: ("jax", "jaxlib", "keras"), TORCH: ("torch",)}
