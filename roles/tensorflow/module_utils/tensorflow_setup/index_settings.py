"""Where uv looks for packages on a host: as its user has set it for uv, or for pip."""

from __future__ import annotations

import configparser
import os
import re
import ssl
from contextlib import suppress
from typing import Dict, Iterator, List, Tuple

#: Variables of uv that say where packages come from, and how they are fetched. The others, such as
#: where they go, are decided here (https://docs.astral.sh/uv/reference/environment).
_SOURCES = re.compile(
    r"UV_(?:CONFIG_FILE|.*INDEX.*|FIND_LINKS|INSECURE_HOST|SYSTEM_CERTS|NATIVE_TLS|HTTP_.*|REQUEST_TIMEOUT"
    r"|KEYRING_PROVIDER|CREDENTIALS_DIR|CONCURRENT_.*|OFFLINE)"
)
#: Options of pip, and the variables of uv and others that mean the same. Further indexes are left
#: out: uv does not choose among several as pip does
#: (https://pip.pypa.io/en/stable/topics/configuration).
_OPTIONS = {
    "index-url": "UV_DEFAULT_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
    "proxy": "ALL_PROXY",
}
#: Files with pip's settings for all users.
SYSTEM_FILES = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf")
#: pip's settings for all commands, and those for its commands that find packages.
_SECTIONS = ("global", "install")


def of_host(index_url: str) -> Dict[str, str]:
    """Return the environment in which uv takes packages from an index.

    Args:
        index_url: address of the index. Empty: as it is set on the host, at first for uv, then for
            pip.
    """
    environment = {**_of_pip(), **without_uv()}
    environment.update(
        {name: text for name, text in os.environ.items() if _SOURCES.fullmatch(name)}
    )
    if index_url:
        environment["UV_DEFAULT_INDEX"] = index_url
    paths = ssl.get_default_verify_paths()
    with suppress(OSError):
        # uv includes certificates, but not those that an administrator has added.
        if paths.cafile or (paths.capath and os.listdir(paths.capath)):
            environment.setdefault("UV_SYSTEM_CERTS", "1")
    return environment


def without_uv() -> Dict[str, str]:
    """Return this process's environment without settings of uv."""
    return {name: text for name, text in os.environ.items() if not name.startswith("UV_")}


def _of_pip() -> Dict[str, str]:
    """Return what pip's files and variables set, as variables of uv."""
    return {
        _OPTIONS[option]: " ".join(text.split())
        for option, text in _pip_options()
        if option in _OPTIONS and text.strip()
    }


def _pip_options() -> Iterator[Tuple[str, str]]:
    """Yield pip's settings; of the same option, the later one holds."""
    for path in _pip_files():
        parser = configparser.RawConfigParser()
        with suppress(OSError, UnicodeDecodeError, configparser.Error):
            parser.read([path], encoding="utf-8")
            for section in filter(parser.has_section, _SECTIONS):
                yield from parser.items(section)
    for name, text in os.environ.items():
        if name.startswith("PIP_"):
            yield name[len("PIP_") :].lower().replace("_", "-"), text


def _pip_files() -> List[str]:
    """Return the places of pip's settings on Linux, from the weakest to the strongest."""
    chosen = os.environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return []
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    places = [*SYSTEM_FILES, "~/.pip/pip.conf", f"{config}/pip/pip.conf"]
    return [os.path.expanduser(path) for path in [*places, *filter(None, [chosen])]]
