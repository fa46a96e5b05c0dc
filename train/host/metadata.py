"""Asks a cloud's metadata server whether this host will be reclaimed.

Only the server of the cloud whose machine this is, according to its firmware (DMI), is asked. An
answer in any other form than the documented one is an error, not a notice.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional

from . import plain_text, processes

#: Values of ``train_job_preemption``, besides the URL of a server. AUTO: the cloud that DMI names.
AUTO, OFF = "auto", "off"
GCP, AWS, AZURE, URL = "gcp", "aws", "azure", "url"
CLOUDS = (GCP, AWS, AZURE)
#: The address of the metadata server of all three clouds.
SERVER = "http://169.254.169.254"
DMI = "/sys/class/dmi/id"
#: The tag of Azure's machines.
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
#: Seconds from a notice to the end of the host, unless the answer contains the time.
_LENGTHS = {GCP: 30.0, AWS: 120.0, AZURE: 30.0, URL: 30.0}
#: The longest notice of Azure, before an instance is deleted.
_LONGEST_S = 900.0
#: Seconds between two requests, usually and if the server answers as soon as something changes.
EVERY_S, AT_ONCE_S = 5.0, 1.0
#: Seconds for a server to answer, and for which it may wait for a change.
TIMEOUT_S, _CHANGE_S = 5.0, 50
#: Maximum bytes of an answer.
_LONGEST_ANSWER = 65_536
#: Seconds for which a token of AWS is valid, and its maximum length.
_TOKEN_S, _LONGEST_TOKEN = 21_600, 1_024
_ISO = "%Y-%m-%dT%H:%M:%SZ"
#: The name of a machine on Azure, and events after which a machine does not come back.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_AZURE_EVENTS = ("Preempt", "Terminate")


class MetadataError(Exception):
    """A metadata server did not answer, or not in the documented form."""


class Answer(NamedTuple):
    """An answer of a metadata server; names of headers are in lower case."""

    status: int
    text: str
    headers: Mapping[str, str]


class Finding(NamedTuple):
    """What a metadata server reports.

    Attributes:
        seconds: until the host is reclaimed; None without a notice.
        at_risk: whether the cloud recommends to leave the host, which may stay for hours.
    """

    seconds: Optional[float] = None
    at_risk: bool = False


def cloud_of(folder: str = "") -> str:
    """Return the cloud whose machine this is, according to its firmware; empty for others."""

    def read(name: str) -> str:
        return processes.read_text(folder or DMI, name).strip()

    if read("product_name") == "Google Compute Engine":
        return GCP
    amazon = [read(name) for name in ("sys_vendor", "bios_vendor", "chassis_asset_tag")]
    if "Amazon EC2" in amazon or read("bios_version").endswith(".amazon"):
        return AWS
    is_azure = read("sys_vendor") == "Microsoft Corporation"
    return AZURE if is_azure and read("chassis_asset_tag") == _AZURE_TAG else ""


def fetch(
    url: str, headers: Mapping[str, str], method: str = "GET", timeout: float = TIMEOUT_S
) -> Answer:
    """Return the answer to a request. Redirects are not followed, and proxies are not used."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=timeout)
        try:
            path = (parts.path or "/") + ("?" + parts.query if parts.query else "")
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(_LONGEST_ANSWER + 1)
            found = {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        raise MetadataError(str(error) or type(error).__name__) from None
    if len(body) > _LONGEST_ANSWER:
        raise MetadataError("the answer is longer than %d bytes" % _LONGEST_ANSWER)
    try:
        return Answer(response.status, body.decode("utf-8"), found)
    except ValueError:
        raise MetadataError("the answer is not text") from None


def _garbled(text: str) -> MetadataError:
    return MetadataError("unexpected answer: %r" % plain_text.clean(text, 100))


def _json(text: str) -> Dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _garbled(text) from None
    if not isinstance(value, dict):
        raise _garbled(text)
    return value


def _until(when: Any, form: str, usual: float, longest: float = 0.0) -> float:
    """Return the seconds from now to a time in UTC.

    Return ``usual`` if the time is past or later than expected, because a clock may be wrong.
    """
    from datetime import datetime, timezone  # slow to import

    try:
        at = datetime.strptime(when, form).replace(tzinfo=timezone.utc).timestamp()
    except (TypeError, ValueError, OverflowError):
        raise _garbled(str(when)) from None
    left = at - time.time()
    return left if 0 < left <= max(usual, longest) else usual


def _expect(answer: Answer, *allowed: int) -> None:
    if answer.status not in (200, *allowed):
        raise MetadataError("the server answered with status %d" % answer.status)


def parse_gcp(answer: Answer) -> Finding:
    """Return the finding of Google Cloud's ``instance/preempted``."""
    _expect(answer)
    text = answer.text.strip()
    if answer.headers.get("metadata-flavor") != "Google" or text not in ("TRUE", "FALSE"):
        raise _garbled(answer.text)
    return Finding(_LENGTHS[GCP]) if text == "TRUE" else Finding()


def parse_aws(action: Answer, rebalance: Answer) -> Finding:
    """Return the finding of AWS's ``spot/instance-action`` and its recommendation to rebalance."""
    for answer in (action, rebalance):
        _expect(answer, 404)
    at_risk = False
    if rebalance.status == 200:
        _until(_json(rebalance.text).get("noticeTime"), _ISO, 0.0)
        at_risk = True
    if action.status == 404:
        return Finding(at_risk=at_risk)
    found = _json(action.text)
    if found.get("action") not in ("terminate", "stop", "hibernate"):
        raise _garbled(action.text)
    return Finding(_until(found.get("time"), _ISO, _LENGTHS[AWS]), at_risk)


def parse_azure(answer: Answer, name: str) -> Finding:
    """Return the finding of Azure's scheduled events for the machine ``name``."""
    _expect(answer)
    events = _json(answer.text).get("Events")
    if not isinstance(events, list):
        raise _garbled(answer.text)
    seconds = []
    for event in events:
        if not isinstance(event, dict) or not isinstance(event.get("Resources"), list):
            raise _garbled(answer.text)
        if event.get("EventType") in _AZURE_EVENTS and name in event["Resources"]:
            if event.get("EventStatus") not in ("Scheduled", "Started"):
                raise _garbled(answer.text)
            usual, when = _LENGTHS[AZURE], event.get("NotBefore")
            form = "%a, %d %b %Y %H:%M:%S GMT"
            seconds.append(_until(when, form, usual, _LONGEST_S) if when else usual)
    return Finding(min(seconds, default=None))


def parse_url(answer: Answer) -> Finding:
    """Return the finding of a server that the user has set.

    A notice is the text ``TRUE``, a time such as 2026-11-28T01:02:03Z, or the JSON of AWS.
    """
    _expect(answer, 404, 204)
    text = answer.text.strip()
    if answer.status != 200 or text in ("", "FALSE"):
        return Finding()
    if text == "TRUE":
        return Finding(_LENGTHS[URL])
    if text.startswith("{"):
        return parse_aws(answer, Answer(404, "", {}))
    return Finding(_until(text, _ISO, _LENGTHS[URL], _LENGTHS[AWS]))


class Server:
    """Asks the server that a value of ``train_job_preemption`` selects.

    Attributes:
        source: the kind of the server; empty if there is none to ask.
    """

    def __init__(self, setting: str) -> None:
        is_url = setting.startswith(("http://", "https://"))
        chosen = {OFF: "", AUTO: cloud_of()} if setting in (OFF, AUTO) else {}
        self.source = URL if is_url else chosen.get(setting, setting)
        self._url = setting
        self._etag = ""  # of the last answer of Google Cloud
        self._token = ""  # of AWS
        self._name = ""  # of the machine on Azure

    @property
    def waits(self) -> bool:
        """Whether the next answer comes when something has changed."""
        return bool(self._etag)

    def ask(self) -> Finding:
        """Return what the server reports; raise MetadataError if that is unknown."""
        asks: Dict[str, Callable[[], Finding]] = {
            GCP: self._ask_gcp,
            AWS: self._ask_aws,
            AZURE: self._ask_azure,
            URL: lambda: parse_url(fetch(self._url, {})),
        }
        return asks[self.source]()

    def _ask_gcp(self) -> Finding:
        url, timeout = SERVER + "/computeMetadata/v1/instance/preempted", TIMEOUT_S
        if self._etag:
            url += "?wait_for_change=true&timeout_sec=%d&last_etag=%s" % (_CHANGE_S, self._etag)
            timeout += _CHANGE_S
        self._etag = ""
        answer = fetch(url, {"Metadata-Flavor": "Google"}, timeout=timeout)
        finding = parse_gcp(answer)
        etag = answer.headers.get("etag", "")
        self._etag = etag if etag.isalnum() and etag.isascii() else ""
        return finding

    def _ask_aws(self) -> Finding:
        return parse_aws(
            self._fetch_aws("spot/instance-action"),
            self._fetch_aws("events/recommendations/rebalance"),
        )

    def _fetch_aws(self, name: str) -> Answer:
        url, header = SERVER + "/latest/meta-data/" + name, "X-aws-ec2-metadata-token"
        answer = fetch(url, {header: self._token}) if self._token else Answer(401, "", {})
        if answer.status != 401:
            return answer
        ttl = {header + "-ttl-seconds": str(_TOKEN_S)}
        made = fetch(SERVER + "/latest/api/token", ttl, "PUT")
        _expect(made)
        token = made.text.strip()
        if not (token.isascii() and token.isprintable() and 0 < len(token) <= _LONGEST_TOKEN):
            raise _garbled(made.text)
        self._token = token
        return fetch(url, {header: self._token})

    def _ask_azure(self) -> Finding:
        url, headers = SERVER + "/metadata/", {"Metadata": "true"}
        if not self._name:
            name = fetch(url + "instance/compute/name?api-version=2021-02-01&format=text", headers)
            _expect(name)
            if not _NAME.fullmatch(name.text.strip()):
                raise _garbled(name.text)
            self._name = name.text.strip()
        return parse_azure(
            fetch(url + "scheduledevents?api-version=2020-07-01", headers), self._name
        )


class Asking:
    """Asks a server until it gives a notice, in a separate thread.

    Attributes:
        source: the kind of the server; empty if none is asked.
        last: the last known finding.
    """

    def __init__(self, setting: str) -> None:
        self._server, self.last = Server(setting), Finding()
        self.source, self._has_failed = self._server.source, False
        self._setting = setting

    def start(self) -> None:
        """Start to ask, if there is a server."""
        if self.source:
            threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        while self.last.seconds is None:
            pause = EVERY_S
            try:
                self.last = self._server.ask()
                pause = AT_ONCE_S if self._server.waits else EVERY_S
            except Exception as error:  # any error: no answer means no notice
                if not self._has_failed:
                    plain_text.note("notices of preemption (%s): %s" % (self.source, error))
                self._has_failed = True
            time.sleep(pause)

    def ask_now(self, timeout: float) -> Optional[float]:
        """Return the seconds until this host is reclaimed; None without a timely notice."""
        if self.last.seconds is None and self.source:
            self.last = ask_once(self._setting, timeout) or self.last
        return self.last.seconds


def ask_once(setting: str, timeout: float) -> Optional[Finding]:
    """Return what the server of a setting reports; None if that is unknown within ``timeout``."""
    server, found = Server(setting), []

    def ask() -> None:
        with contextlib.suppress(Exception):  # any error: no answer means no notice
            found.append(server.ask())

    if not server.source:
        return None
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    return found[0] if found else None
