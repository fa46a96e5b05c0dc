"""The classification of errors from OpenSSH, sudo and Ansible."""

from __future__ import annotations

import pytest

from train.gang import login_failures, suggestions
from train.gang.login_failures import classify, failure, merged

WRAPPED = "Task failed: Failed to connect to the host via ssh: "
CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Offending ECDSA key in /home/anna/.ssh/known_hosts:7
Host key for node-1 has changed and you have requested strict checking.
Host key verification failed.\r"""
OPEN = """\
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @
Permissions 0644 for '/home/anna/.ssh/id_rsa' are too open.
This private key will be ignored.
Load key "/home/anna/.ssh/id_rsa": bad permissions
train@192.0.2.11: Permission denied (publickey)."""

TEXTS = [
    ("changed-key", CHANGED),
    ("changed-key", "WARNING: REVOKED HOST KEY DETECTED!\nHost key verification failed."),
    ("unknown-key", "Host key verification failed."),
    ("unknown-key", "No ED25519 host key is known for [192.0.2.1]:2222 and you have requested "
                    "strict checking.\r\nHost key verification failed.\r\n"),
    ("unknown-key", "Using a SSH password instead of a key is not possible because Host Key "
                    "checking is enabled and sshpass does not support this."),
    ("key-denied", "train@192.0.2.11: Permission denied (publickey)."),
    ("key-denied", "train@h: Permission denied (publickey,gssapi-keyex,gssapi-with-mic)."),
    ("key-denied", "Unauthorized use leads to: Connection refused, then jail.\n"
                   "train@h: Permission denied (publickey)."),
    ("password-denied", "train@192.0.2.11: Permission denied (publickey,password)."),
    ("password-denied", "Invalid/incorrect password: Permission denied, please try again."),
    ("many-keys", "Received disconnect from 192.0.2.1 port 22:2: Too many authentication "
                  "failures\nDisconnected from 192.0.2.1 port 22"),
    ("refused", "ssh: connect to host 192.0.2.11 port 22: Connection refused"),
    ("refused", "channel 0: open failed: connect failed: Connection refused\nstdio forwarding "
                "failed\nConnection closed by UNKNOWN port 65535"),
    ("no-route", "ssh: connect to host 192.0.2.11 port 22: No route to host"),
    ("no-route", "ssh: connect to host 2001:db8::1 port 22: Network is unreachable"),
    ("timeout", "ssh: connect to host 192.0.2.11 port 22: Connection timed out"),
    ("timeout", "ssh: connect to host 192.0.2.11 port 22: Operation timed out"),
    ("timeout", "Connection timed out during banner exchange\n"
                "Connection to 192.0.2.11 port 22 timed out"),
    ("unknown-name", "ssh: Could not resolve hostname node-1: Name or service not known"),
    ("unknown-name", "ssh: Could not resolve hostname n: Temporary failure in name resolution"),
    ("unknown-name", "channel 0: open failed: connect failed: Name or service not known\n"
                     "stdio forwarding failed\nkex_exchange_identification: Connection closed"),
    ("nologin", "This account is currently not available."),
    ("booting", '"System is booting up. Unprivileged users are not permitted to log in yet. '
                'Please come back later."\nConnection closed by 192.0.2.1 port 22'),
    ("expired", "WARNING: Your password has expired.\n"
                "Password change required but no TTY available."),
    ("expired", "Your account has expired; please contact your system administrator.\n"
                "Connection closed by 192.0.2.1 port 22"),
    ("expired", "You are required to change your password immediately (administrator enforced)."),
    ("dropped", "kex_exchange_identification: Connection closed by remote host\n"
                "Connection closed by 192.0.2.1 port 22"),
    ("dropped", "kex_exchange_identification: read: Connection reset by peer"),
    ("dropped", "ssh_exchange_identification: Connection closed by remote host"),
    ("dropped", "banner exchange: Connection to 192.0.2.1 port 22: Connection reset by peer"),
    ("dropped", "Exceeded MaxStartups"),
    ("dropped", "Not allowed at this time"),
    ("key-permissions", OPEN),
    ("key-permissions", "Bad owner or permissions on /home/anna/.ssh/config"),
    ("key-missing", "Warning: Identity file /nope/key not accessible: No such file or directory.\n"
                    "train@h: Permission denied (publickey)."),
    ("key-missing", "no such identity: /nope/key: No such file or directory\n"
                    "train@h: Permission denied (publickey)."),
    ("key-passphrase", 'Load key "/k": incorrect passphrase supplied to decrypt private key\n'
                       "train@h: Permission denied (publickey)."),
    ("key-unusable", 'Load key "/k": error in libcrypto\ntrain@h: Permission denied (publickey).'),
    ("key-unusable", 'Load key "/k": invalid format\ntrain@h: Permission denied (publickey).'),
    ("algorithms", "Unable to negotiate with 192.0.2.1 port 22: no matching host key type found. "
                   "Their offer: ssh-rsa,ssh-dss"),
    ("become", "Task failed: Missing sudo password"),
    ("become", "Task failed: Incorrect sudo password"),
    ("become", "sudo: a password is required"),
    ("become", "sudo: a terminal is required to read the password; either use the -S option to "
               "read from standard input or configure an askpass helper\n"
               "sudo: a password is required"),
    ("become", "train is not in the sudoers file."),
    ("become", "sudo: interactive authentication is required"),
    ("become", "Timeout (12s) waiting for privilege escalation prompt: "),
    ("become", "sudo: sorry, you must have a tty to run sudo"),
    ("no-sshpass", "to use the 'ssh' connection type with passwords or pkcs11_provider, you must "
                   "install the sshpass program"),
    ("no-ssh", "[Errno 2] No such file or directory: b'ssh'"),
    ("configuration", "/home/anna/.ssh/config: line 3: Bad configuration option: prot\n"
                      "/home/anna/.ssh/config: terminating, 1 bad configuration options"),
    ("configuration", 'unix_listener: path "/very/long" too long for Unix domain socket'),
    ("lost", "Shared connection to 192.0.2.1 closed."),
    ("lost", "client_loop: send disconnect: Broken pipe"),
    ("no-commands", "Module result deserialization failed: No start of json char found"),
    ("other", "something new"),
    ("other", ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_the_kind_of_a_failure(kind: str, text: str) -> None:
    assert classify(text).kind == kind
    assert classify(WRAPPED + text).kind == kind


@pytest.mark.parametrize("kind", login_failures.KINDS)
def test_each_kind_is_one_sentence_and_one_remedy(kind: str) -> None:
    found = failure(kind)
    assert found.kind == kind
    assert "\n" not in found.sentence + found.remedy
    assert not found.sentence.endswith(".")
    assert "{" not in found.remedy


def test_the_remedy_logs_in_as_ansible_does() -> None:
    host_vars = {
        "ansible_host": "192.0.2.11",
        "ansible_port": 2222,
        "ansible_user": "train",
        "ansible_ssh_private_key_file": "/keys/my key",
        "ansible_ssh_common_args": "-o 'ProxyCommand=ssh -W %h:%p jump'",
        "ansible_ssh_extra_args": None,
    }
    expected = "ssh -o 'ProxyCommand=ssh -W %h:%p jump' -i '/keys/my key' -p 2222 train@192.0.2.11"
    assert suggestions.ssh(host_vars) == expected
    assert f"`{expected}`" in classify("Host key verification failed.", host_vars).remedy
    assert "`ssh-keygen -R '[192.0.2.11]:2222'`" in classify(CHANGED, host_vars).remedy
    plain = {"ansible_host": "192.0.2.11", "ansible_port": 22}
    assert suggestions.ssh(plain) == "ssh 192.0.2.11"


def test_hosts_with_the_same_failure_are_one_message() -> None:
    refused, away = failure("refused"), failure("no-route")
    lost = {f"node-{n}": refused for n in range(1, 6)} | {"node-9": away}
    assert merged(lost) == [
        f"node-1, node-2 and 3 more are unreachable: {refused.text}",
        f"node-9 is unreachable: {away.text}",
    ]
    assert login_failures.names_of(["a", "b", "c"]) == "a, b and c"
    assert login_failures.names_of(["a"]) == "a"


def test_a_result_describes_its_failure_or_has_the_text_of_ssh() -> None:
    described = failure("hangs")
    assert login_failures.of_result({"msg": described.text}) == described
    result = {"msg": "ssh: connect to host h port 22: Connection refused"}
    assert login_failures.of_result(result).kind == "refused"


def test_equal_hosts_are_merged_in_their_natural_order() -> None:
    refused = login_failures.failure("refused")
    (line,) = login_failures.merged(dict.fromkeys(["node-10", "node-2", "node-1"], refused))
    assert line.startswith("node-1, node-2 and node-10 are unreachable: ")
