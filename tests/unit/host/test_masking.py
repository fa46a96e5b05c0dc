from __future__ import annotations

import pytest

from train.host.masking import Mask

KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQ\n-----END KEY-----"


@pytest.mark.parametrize(
    ("name", "value", "text", "masked"),
    [
        ("API_TOKEN", "hunter2-is-secret", "no hunter2-is-secret here", "no *** here"),
        ("API_TOKEN", "swordfish", "ValueError: swordfish", "ValueError: ***"),
        ("wandb_api_key", "12345678", "key 12345678 refused", "key *** refused"),
        ("DB_PASSWORD", "/abc/def", "login with /abc/def failed", "login with *** failed"),
        ("HF", "hf_AbCd1234EfGh5678", "it is hf_AbCd1234EfGh5678!", "it is ***!"),
        ("PROXY", "http://me:pw@proxy", "via http://me:pw@proxy:1", "via ***:1"),
        ("API_TOKEN", "hunter2-is-secret", "cut off: hunter2-is-s", "cut off: ***"),
        ("DB_PASSWORD", "12345", "login with 12345 failed", "login with *** failed"),
        ("PASSPHRASE", "none", "with none", "with ***"),
        ("API_TOKEN", "123456", "no 123456 here", "no *** here"),
        ("AUTHORIZATION", "Basic abc", "sent Basic abc", "sent ***"),
        ("API_TOKEN", "a b/c", "GET /?token=a%20b%2Fc", "GET /?token=***"),
        ("API_TOKEN", 'say "x" \\ y', "KeyError: 'say \"x\" \\\\ y'", "KeyError: '***'"),
        ("SSH_KEY", KEY, "read MIIEvQIBADANBg and more", "read *** and more"),
        ("CODE_KEY", "\N{SNOWMAN} secret", "a \N{SNOWMAN} secret", "a ***"),
    ],
)
def test_secrets_are_masked(name: str, value: str, text: str, masked: str) -> None:
    assert Mask([{"OTHER": "x"}, {name: value}]).text(text) == masked


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", 4),
        ("LEARNING_RATE", "0.0001234"),
        ("EXPERIMENT", "baseline"),
        ("DATASET", "cifar10"),
        ("DATA", "/srv/data set/v2"),
        ("CACHE", "~/cache/run_1"),
        ("NCCL_SOCKET_IFNAME", "enp0s31f6,eth0"),
        ("STARTED", "2026-11-25 18:00:00"),
        ("RUN", "resnet50-imagenet-2012-run-3"),
        ("OUT", "/srv/results/0123456789abcdef"),
        ("NOTE", "from the group's variables"),
        ("no_proxy", "localhost,127.0.0.1"),
        ("DEBUG", "true"),
        ("PIN", "123"),
        ("EMPTY", ""),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("USE_AUTH_TOKEN", "False"),
        ("TOKENIZER", "bert-base-uncased"),
        ("MAX_NEW_TOKENS", 2048),
        ("KEY_FRAME_RATE", "0.25"),
        ("WARMUP_PASSES", 1000),
        ("AUTHOR", "anna"),
    ],
)
def test_harmless_values_stay_readable(name: str, value: object) -> None:
    text = f"with {value} of {name}"
    mask = Mask([{name: value}])
    assert mask.text(text) == text
    assert mask.log(text.encode()) == text.encode()


def test_every_value_is_masked_in_messages_for_others() -> None:
    mask = Mask([{"SESAME": "open up", "THREADS": 4}], every=True)
    assert mask.text("4 say open up") == "4 say ***"


def test_a_log_keeps_its_length() -> None:
    mask = Mask([{"API_TOKEN": "s3cret-é"}, {"API_TOKEN": "s3cret-é-longer"}])
    data = "1 s3cret-é, 2 s3cret-é-longer\r\n".encode()
    assert mask.log(data) == b"1 *********, 2 ****************\r\n"
    assert mask.longest >= len("s3cret-é-longer".encode())
    assert mask.log(b"\xff\xfe") == b"\xff\xfe"


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_secret_that_is_cut_between_two_pieces_is_masked_in_both(cut: int) -> None:
    mask, log = Mask([{"API_TOKEN": "hunter2-is-secret"}]), b"a hunter2-is-secret b"
    first = mask.log(log[:cut], after=log[cut : cut + mask.longest])
    second = mask.log(log[cut:], before=log[max(0, cut - mask.longest) : cut])
    assert first + second == b"a " + 17 * b"*" + b" b"
