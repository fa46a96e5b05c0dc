"""Explains failed logins: one sentence and one remedy for each kind of failure.

``classify`` takes the output of OpenSSH, sudo or Ansible. It is a pure function, so that all
commands, the doctor and setup describe a failure in the same way.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from train.gang import suggestions
from train.host import plain_text

#: Number of names to list in a message before counting the rest.
_NAMED = 2
#: Separates a sentence from its remedy.
REMEDY = "\n  remedy: "
#: Text that a failed task adds before and within the messages of ssh.
_WRAPPERS = re.compile(
    r"(?:Task failed: |Action failed: |Failed to connect to the host via ssh: |"
    r"Data could not be sent to remote host \S+ Make sure this host can be reached over ssh: |"
    r"Failed to create temporary directory\.? ?)"
)


class LoginFailure(NamedTuple):
    """A failed login. ``remedy`` contains the command for this host."""

    kind: str
    sentence: str
    remedy: str

    @property
    def text(self) -> str:
        """The sentence and its remedy on two lines."""
        return f"{self.sentence}{REMEDY}{self.remedy}"


class _Kind(NamedTuple):
    """The message about a kind of failure. The remedy contains the fields of ``_fields``."""

    sentence: str
    remedy: str


#: The message for each kind.
KINDS = {
    "changed-key": _Kind(
        "the host key has changed: the host was reinstalled, or another machine answers at "
            "its address",
        "compare the key with the host's own, then remove the old key with `{forget}` and log "
        "in with `{ssh}`",
    ),
    "unknown-key": _Kind(
        "the host key is not known on this machine",
        "run `{ssh}`, compare the fingerprint, and accept the key",
    ),
    "key-permissions": _Kind(
        "ssh ignores the private key or its configuration, because other users can read or "
            "change it",
        "restrict access to its owner: `chmod 600 {key}`",
    ),
    "key-missing": _Kind(
        "the private key file does not exist on this machine",
        "correct ansible_ssh_private_key_file or --private-key ({key})",
    ),
    "key-passphrase": _Kind(
        "the private key has a passphrase and is not loaded in an ssh-agent",
        "run `eval $(ssh-agent)` if no agent is running, then `ssh-add {key}`",
    ),
    "key-unusable": _Kind(
        "the private key file is not a valid key",
        "check it with `ssh-keygen -y -f {key}`",
    ),
    "expired": _Kind(
        "the password or the account of the user has expired on the host",
        "run `{ssh}` to set a new password, or run `chage -M -1 -E -1 {user}` on the host as root",
    ),
    "nologin": _Kind(
        "the user's account has no login shell on the host",
        "run `usermod -s /bin/bash {user}` on the host as root, or set ansible_user to "
            "another user",
    ),
    "booting": _Kind(
        "the host rejects logins of unprivileged users: it is booting, shutting down or "
            "under maintenance (/etc/nologin)",
        "wait until `{ssh}` works",
    ),
    "many-keys": _Kind(
        "the host rejected the login because ssh offered too many keys from the ssh-agent",
        "set ansible_ssh_private_key_file, and ansible_ssh_common_args to -o IdentitiesOnly=yes",
    ),
    "key-denied": _Kind(
        "permission denied: the host accepts none of this machine's keys for the user",
        "install your key with `{copy_id}`, or set ansible_user and ansible_ssh_private_key_file",
    ),
    "password-denied": _Kind(
        "permission denied: the host accepts neither a key nor the password",
        "log in with `{ssh}`; install a key with `{copy_id}`, or give the password with "
        "--ask-pass",
    ),
    "refused": _Kind(
        "the connection was refused: no SSH server listens on the port",
        "start sshd on the host, or fix ansible_port; test with `{ssh}`",
    ),
    "no-route": _Kind(
        "the host cannot be reached: it is switched off, or on another network",
        "check that the host is running and ansible_host is correct; test with `{ssh}`",
    ),
    "unknown-name": _Kind(
        "the host's name cannot be resolved to an address",
        "set ansible_host to its address, or fix the name; test with `{ssh}`",
    ),
    "timeout": _Kind(
        "the connection timed out: the host is switched off, or a firewall drops the packets",
        "check that the host is running and its firewall allows SSH; test with `{ssh}`",
    ),
    "dropped": _Kind(
        "the SSH server closed the connection before the login: too many concurrent logins "
            "(MaxStartups), or a ban, for example by fail2ban",
        "try again; if it persists, raise MaxStartups in the host's sshd_config",
    ),
    "algorithms": _Kind(
        "ssh and the host's SSH server have no algorithm in common",
        "update the older of the two; `{ssh} -v` lists the algorithms",
    ),
    "become": _Kind(
        "sudo requires a password, or does not allow the user to become another user",
        "add --ask-become-pass, or allow it with NOPASSWD in the host's sudoers",
    ),
    "hangs": _Kind(
        "the login hangs: the host accepted it, but no command ran in time",
        "run `{ssh}` to find out what the login is waiting for; ~/.bashrc and similar files must "
        "not block without a terminal",
    ),
    "no-commands": _Kind(
        "the login does not run commands: a startup file such as ~/.bashrc exits or "
            "replaces the shell",
        "let ~/.bashrc and similar files use `exit` or `exec` only if [ -t 1 ]; test with "
            "`{ssh} echo works`",
    ),
    "no-python": _Kind(
        "the host has no Python",
        "install python3 (3.8 or newer), or set ansible_python_interpreter to its path",
    ),
    "no-ssh": _Kind(
        "the program ssh is not installed on this machine",
        "install it, on Debian with `apt install openssh-client`",
    ),
    "no-sshpass": _Kind(
        "sshpass, which password logins need, is not installed on this machine",
        "install it, on Debian with `apt install sshpass`, or use a key",
    ),
    "configuration": _Kind(
        "ssh rejects its configuration or the options in ansible_ssh_common_args",
        "fix the option reported by `{ssh}`",
    ),
    "lost": _Kind(
        "the connection was lost",
        "check that the host is still running: `{ssh}`",
    ),
}  # fmt: skip

#: Kinds that the host's SSH server rejects. After several of them, fail2ban bans this machine.
REJECTED = frozenset(
    ("dropped", "expired", "key-denied", "many-keys", "nologin", "password-denied")
)

#: Patterns that decide wherever they match in the output, because ssh prints other errors later.
_DECISIVE = (
    ("changed-key", r"REMOTE HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY DETECTED"),
    ("key-permissions", r"UNPROTECTED PRIVATE KEY FILE|Bad owner or permissions on|"
                        r"ad permissions: ignore key"),
    ("key-missing", r"(?:Identity file \S+ not accessible|no such identity:[^\n]+):? No such file"),
    ("key-passphrase", r"incorrect passphrase supplied|Enter passphrase for key"),
    ("key-unusable", r"Load key [^\n]+: (?:invalid format|error in libcrypto)"),
    ("expired", r"[Pp]assword has expired|Password change required|account has expired|"
                r"required to change your password|token is no longer valid"),
    ("booting", r"not permitted to log in yet|System is (?:booting up|going down)"),
    ("become", r"Missing \S+ password|Incorrect \S+ password|a password is required|"
               r"not in the sudoers|may not run sudo|is not allowed to (?:execute|run sudo)|"
               r"no askpass program|privilege escalation prompt|[Pp]rivilege output closed|"
               r"you must have a tty|sudo: [^\n]*authenticat|\bsu: Authentication failure"),
    ("no-sshpass", r"install the sshpass program"),
    ("unknown-key", r"Host Key checking is enabled and sshpass"),
    ("no-ssh", r"\bssh: (?:command )?not found|"
               r"No such file or directory: b?['\"](?:\S*/)?ssh['\"]"),
)  # fmt: skip
#: Patterns of single lines. The last matching line decides, because a banner may come first.
_LINES = (
    ("unknown-key", r"Host key verification failed|host key is known for|can't be established"),
    ("unknown-name", r"Could not resolve hostname|[Nn]ame or service not known|"
                     r"failure in name resolution|nodename nor servname"),
    ("refused", r"Connection refused"),
    ("no-route", r"No route to host|Network is unreachable|Host is down"),
    ("timeout", r"timed out|[Tt]imeout,? (?:server|waiting)|Timeout \("),
    ("algorithms", r"Unable to negotiate|no matching (?:host key|key exchange|cipher|mac)"),
    ("many-keys", r"Too many authentication failures"),
    ("password-denied", r"Permission denied \([^)]*password|Permission denied, please try again|"
                        r"Invalid/incorrect (?:username/)?password"),
    ("key-denied", r"Permission denied \([^)]*\)|Authentication failed"),
    ("nologin", r"account is currently not available|\bnologin\b|account is disabled"),
    ("configuration", r"[Bb]ad configuration option|bad configuration options|"
                      r"too long for Unix domain socket|unknown option|Bad port|^usage: ssh"),
    ("lost", r"Shared connection to \S+ closed|client_loop|Broken pipe|mux_client|"
             r"Connection to \S+ closed by remote host"),
    ("dropped", r"(?:kex|ssh)_exchange_identification|Exceeded MaxStartups|"
                r"Not allowed at this time|Connection (?:closed|reset) by|"
                r"banner exchange: Connection"),
    ("no-commands", r"Module result deserialization failed|No start of json char found"),
)  # fmt: skip
#: An error from behind a jump host decides, although ssh later prints errors of its connection.
_BEHIND = re.compile(r"open failed: (?:connect failed|administratively[^:\n]*): ([^\n]+)")


def classify(text: str, host_vars: Mapping[str, Any] | None = None) -> LoginFailure:
    """Classify the text of a failed login.

    Args:
        text: output of ssh, sudo or Ansible.
        host_vars: the host's connection variables, for commands in the remedy; see
            ``suggestions.ssh``.
    """
    plain = _WRAPPERS.sub("", text.replace("\r", ""))
    kind = _kind_of(plain)
    if kind:
        return failure(kind, host_vars)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    sentence = plain_text.clean(lines[-1], 300) if lines else ""
    sentence = sentence or "the login failed without an error message"
    fields = _fields(host_vars or {})
    remedy = f"try it manually: `{fields['ssh']}`" if host_vars else "log in manually for details"
    return LoginFailure("other", sentence, remedy)


def _kind_of(text: str) -> str:
    for kind, pattern in _DECISIVE:
        if re.search(pattern, text):
            return kind
    behind = _BEHIND.search(text)
    for line in [*(behind.groups() if behind else ()), *reversed(text.splitlines())]:
        for kind, pattern in _LINES:
            if re.search(pattern, line):
                return kind
    return ""


def failure(kind: str, host_vars: Mapping[str, Any] | None = None) -> LoginFailure:
    """Return the message for one kind of failure."""
    sentence, remedy = KINDS[kind]
    return LoginFailure(kind, sentence, remedy.format(**_fields(host_vars or {})))


def _fields(host_vars: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of the fields in remedies, from a host's connection variables."""
    address, port = host_vars.get("ansible_host"), host_vars.get("ansible_port")
    known = f"[{address}]:{port}" if str(port or 22) != "22" else str(address or "HOST")
    key = host_vars.get("ansible_ssh_private_key_file")
    return {
        "ssh": suggestions.ssh(host_vars),
        "copy_id": suggestions.ssh(host_vars, "ssh-copy-id"),
        "forget": shlex.join(["ssh-keygen", "-R", known]),
        "key": shlex.quote(str(Path(str(key)).expanduser())) if key else "~/.ssh/id_ed25519",
        "user": shlex.quote(str(host_vars.get("ansible_user") or "USER")),
    }


def names_of(hosts: Sequence[str]) -> str:
    """Return a text such as ``node-1, node-2 and 3 more``, or all names if they are few."""
    if len(hosts) > _NAMED + 1:
        return f"{', '.join(hosts[:_NAMED])} and {len(hosts) - _NAMED} more"
    return " and ".join(filter(None, [", ".join(hosts[:-1]), hosts[-1]]))


def merged(failures: Mapping[str, LoginFailure]) -> list[str]:
    """Return a text for each kind of failure, with its hosts and the first host's remedy."""
    groups: dict[str, list[str]] = {}
    for host in sorted(failures, key=natural):
        groups.setdefault(failures[host].sentence, []).append(host)
    return [_line(hosts, failures[hosts[0]]) for hosts in groups.values()]


def natural(host: str) -> list[tuple[str, int]]:
    """Return a key that sorts node-2 before node-10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", host)]


def _line(hosts: Sequence[str], failed: LoginFailure) -> str:
    verb = "is" if len(hosts) == 1 else "are"
    return f"{names_of(hosts)} {verb} unreachable: {failed.text}"


def of_result(result: Mapping[str, Any]) -> LoginFailure:
    """Return the failure that a task's result describes, or classify its message."""
    message = str(result.get("msg", ""))
    sentence, described, remedy = message.partition(REMEDY)
    if not described:
        return classify(message)
    kinds = [kind for kind, known in KINDS.items() if known.sentence == sentence]
    return LoginFailure((kinds or ["other"])[0], sentence, remedy)


def waiting(hosts: Iterable[str]) -> str:
    """Return the line that names hosts whose logins are still pending."""
    return f"{WAITING}{names_of(list(hosts))}"


#: The beginning of the line that ``waiting`` returns.
WAITING = "waiting for the login to "
