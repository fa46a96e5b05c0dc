"""Maps modules to packages, whose names may differ."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from train.gang.packages.requested import Requested

_OF_MODULE = {
    "PIL": ("pillow",),
    "attr": ("attrs",),
    "bs4": ("beautifulsoup4",),
    "cv2": ("opencv-python-headless", "opencv-python", "opencv-contrib-python"),
    "dateutil": ("python-dateutil",),
    "dotenv": ("python-dotenv",),
    "git": ("gitpython",),
    "skimage": ("scikit-image",),
    "sklearn": ("scikit-learn",),
    "yaml": ("pyyaml",),
}


def package_of(module: str, requested: Requested | None = None) -> str:
    """Return the package of a module, named as in the requirements or else by its usual name."""
    names = _OF_MODULE.get(module, (canonicalize_name(module),))
    for line in requested.packages if requested else ():
        if canonicalize_name(line.requirement.name) in names:
            return line.requirement.name
    return names[0]
