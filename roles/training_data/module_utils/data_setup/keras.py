"""Links by which ``keras.datasets`` finds data that were brought, and downloads nothing."""

from __future__ import annotations

import os
from typing import Dict

from .places import DataError, Place

FOLDER = "~/.keras/datasets"


def paths(place: Place, wanted: Dict[str, str]) -> Dict[str, str]:
    """Return the links as they are to be, and what each leads to.

    Args:
        wanted: names below FOLDER, and those of the data.
    """
    folder = os.path.expanduser(FOLDER)
    return {
        os.path.join(folder, link): os.path.join(place.target, name)
        for link, name in wanted.items()
    }


def leads_to(link: str, target: str) -> bool:
    """Whether a link leads to its file, or another file of that size is in its place.

    Keras downloads a data set to there; it compares the hash itself.
    """
    try:
        return os.path.samefile(link, target) or os.path.getsize(link) == os.path.getsize(target)
    except OSError:
        return False


def make_links(place: Place, wanted: Dict[str, str]) -> None:
    """Make what is missing of the links; other links in their place are replaced.

    Raises:
        DataError: a file is in the way.
    """
    for link, target in paths(place, wanted).items():
        if leads_to(link, target):
            continue
        if os.path.lexists(link) and not os.path.islink(link):
            raise DataError(
                "%s is there, and is not the published file of %r: move it away, or leave 'keras'"
                " out." % (link, place.name)
            )
        os.makedirs(os.path.dirname(link), exist_ok=True)
        new = "%s.%d" % (link, os.getpid())
        os.symlink(target, new)
        os.replace(new, link)
