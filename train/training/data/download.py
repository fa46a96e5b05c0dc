"""Fetches published files, if asked to. Standard library only."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from .base import DataError

#: Seconds without a byte after which a server is given up.
PATIENCE = 60
BLOCK = 1 << 20

#: Folders of the published files. Those of MNIST are a copy that Google keeps for TensorFlow: the
#: authors' own server no longer gives them.
MNIST_ADDRESS = "https://storage.googleapis.com/cvdf-datasets/mnist/"
FASHION_MNIST_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
CIFAR10_ADDRESS = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Published:
    """A file as it is published.

    Attributes:
        file: its name.
        address: the folder where it is to be had, with a slash at the end.
        sha256: its hash in hex.
    """

    file: str
    address: str
    sha256: str


#: By data set, the files that --download fetches.
PUBLISHED: dict[str, list[Published]] = {
    "mnist": [
        Published(
            "train-images-idx3-ubyte.gz",
            MNIST_ADDRESS,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        Published(
            "train-labels-idx1-ubyte.gz",
            MNIST_ADDRESS,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        Published(
            "t10k-images-idx3-ubyte.gz",
            MNIST_ADDRESS,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        Published(
            "t10k-labels-idx1-ubyte.gz",
            MNIST_ADDRESS,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ],
    "fashion-mnist": [
        Published(
            "train-images-idx3-ubyte.gz",
            FASHION_MNIST_ADDRESS,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        Published(
            "train-labels-idx1-ubyte.gz",
            FASHION_MNIST_ADDRESS,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        Published(
            "t10k-images-idx3-ubyte.gz",
            FASHION_MNIST_ADDRESS,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        Published(
            "t10k-labels-idx1-ubyte.gz",
            FASHION_MNIST_ADDRESS,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ],
    "cifar10": [
        Published(
            "cifar-10-binary.tar.gz",
            CIFAR10_ADDRESS,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ],
}


def fetch(published: Published, folder: Path) -> None:
    """Fetch a file into ``folder``, which is made if it is missing.

    The file appears there whole and verified, or not at all; several processes may do so at once.

    Raises:
        DataError: the server does not answer, gives something else, or the folder is no good.
    """
    address = published.address + published.file
    target = folder / published.file
    # In the same folder, so that it can be renamed.
    temporary = folder / f".{published.file}.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            found = _copy(address, temporary)
            if found != published.sha256:
                raise DataError(
                    f"{address} gave something else than the published file: its SHA-256 is "
                    f"{found}, not {published.sha256}; nothing was kept"
                )
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except urllib.error.HTTPError as error:
        raise DataError(f"{address} cannot be fetched: {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise DataError(f"{address} cannot be fetched: {error.reason}") from error
    except http.client.HTTPException as error:
        raise DataError(f"{address} cannot be fetched: {error!r}") from error
    except OSError as error:
        raise DataError(f"{address} cannot be fetched to {target}: {error}") from error


def _copy(address: str, target: Path) -> str:
    """Write what ``address`` gives to ``target``; return its SHA-256 in hex."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer, target.open("wb") as stream:
        while block := answer.read(BLOCK):
            digest.update(block)
            stream.write(block)
    return digest.hexdigest()
