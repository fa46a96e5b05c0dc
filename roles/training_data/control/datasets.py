"""Data sets that are known by name, with the hashes of what their authors publish."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A file as its authors publish it.

    Attributes:
        sha256: of the file.
        content: SHA-256 of what the .gz file holds, by which a copy that was compressed anew is
            known; empty where that is not told.
    """

    sha256: str
    content: str = ""


#: Known data sets: what their files are called and must hold.
DATASETS: dict[str, dict[str, Published]] = {
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": Published(
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        "train-labels-idx1-ubyte.gz": Published(
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        "t10k-images-idx3-ubyte.gz": Published(
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        "t10k-labels-idx1-ubyte.gz": Published(
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    },
    "mnist": {
        "train-images-idx3-ubyte.gz": Published(
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        "train-labels-idx1-ubyte.gz": Published(
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        "t10k-images-idx3-ubyte.gz": Published(
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        "t10k-labels-idx1-ubyte.gz": Published(
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    },
    "mnist-npz": {
        "mnist.npz": Published("731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"),
    },
    "cifar-10-python": {
        "cifar-10-python.tar.gz": Published(
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
        ),
    },
    "cifar-10-binary": {
        "cifar-10-binary.tar.gz": Published(
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        ),
    },
}

#: Where below ~/.keras/datasets Keras looks for a data set, and for which of its files.
KERAS: dict[str, dict[str, str]] = {
    "fashion-mnist": {f"fashion-mnist/{name}": name for name in DATASETS["fashion-mnist"]},
    "mnist-npz": {"mnist.npz": "mnist.npz"},
    "cifar-10-python": {
        "cifar-10-batches-py-target_archive": "cifar-10-python.tar.gz",  # Keras 3
        "cifar-10-batches-py.tar.gz": "cifar-10-python.tar.gz",  # Keras 2 (tf-keras)
    },
}
