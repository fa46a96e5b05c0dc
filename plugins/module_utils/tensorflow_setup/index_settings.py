"""The host's settings for uv or pip that select the package index."""

from __future__ import annotations

import configparser
import os
import re
import ssl
from contextlib import suppress
from typing import Dict, Iterator, List, Tuple

#: Variables of uv that select the source of packages and how they are fetched. All others, such as
#: the target, are set by the role (https://docs.astral.sh/uv/reference/environment).
_SOURCES = re.compile(
    r"UV_(?:CONFIG_FILE|.*INDEX.*|FIND_LINKS|INSECURE_HOST|SYSTEM_CERTS|NATIVE_TLS|HTTP_.*|REQUEST_TIMEOUT"
    r"|KEYRING_PROVIDER|CREDENTIALS_DIR|CONCURRENT_.*|OFFLINE)"
)
#: Options of pip and the equivalent variables of uv and others. Additional indexes are ignored,
#: because uv does not choose among several as pip does
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
    """Return environment variables that make uv use a package index.

    Args:
        index_url: address of the index. If empty, the host's settings for uv apply, or else those
            for pip.
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
    """Return this process's environment without variables of uv."""
    return {name: text for name, text in os.environ.items() if not name.startswith("UV_")}


def _of_pip() -> Dict[str, str]:
    """Translate the settings in pip's files and variables into variables of uv."""
    return {
        _OPTIONS[option]: " ".join(text.split())
        for option, text in _pip_options()
        if option in _OPTIONS and text.strip()
    }


def _pip_options() -> Iterator[Tuple[str, str]]:
    """Yield pip's options and values; later ones override earlier ones."""
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
    """Return the paths of pip's configuration files on Linux, lowest priority first."""
    chosen = os.environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return []
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    places = [*SYSTEM_FILES, "~/.pip/pip.conf", f"{config}/pip/pip.conf"]
    return [os.path.expanduser(path) for path in [*places, *filter(None, [chosen])]]
