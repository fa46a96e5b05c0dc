"""Phrases that are not plain English, in documentation, messages, docstrings and comments."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
#: By the pattern of a phrase, the words to use instead.
INSTEAD = {
    r"(?<![Tt]here )\bis no (?!longer\b|(?:more|earlier|later|slower|faster)\b)[a-z]": "is not a",
    r"\bof (?:one's|their|his|our|your) own\b": "their own",
    r"(?:^|[.;:] )What (?:is|was|has|comes|follows|lies)\b(?!.*\?)": "the noun",
    r"\b(?:whoever|somebody)\b": "the actor",
    r"\banew\b": "again",
    r"\bbrings?\b": "installs, adds, contains",
    r"\btakes? away\b": "removes",
    r"\btakes? part\b": "joins",
    r"\bin place of\b": "instead of",
}
#: Files that quote other programs, are generated, or list these phrases.
EXCLUDED = (
    "docs/pictures/",
    "docs/schemas/",
    "docs/variables.md",
    "playbooks/collections/",
    "tests/data/",
    "tests/unit/test_language.py",
)
KINDS = ("*.md", "*.py", "*.yml", "*.cfg", "*.toml", "*.j2", "*.in", "Makefile")


def texts_of(name: str, source: str) -> list[tuple[int, str]]:
    """Return the lines of a file with their numbers; of code, only its strings and comments."""
    if not name.endswith(".py"):
        return list(enumerate(source.splitlines(), 1))
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
    return [
        (token.start[0] + number, line)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in kinds
        for number, line in enumerate(token.string.strip("#\"' ").splitlines())
    ]


def phrases(name: str, source: str) -> list[str]:
    """Return the places of a file with one of the phrases, and the words to use instead."""
    return [
        f"{name}:{number}: {found.group()!r}: {instead}"
        for number, line in texts_of(name, source)
        for pattern, instead in INSTEAD.items()
        if (found := re.search(pattern, line.strip()))
    ]


def test_all_texts_are_in_plain_english() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *KINDS],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    names = [name for name in listed.stdout.split("\0") if name and not name.startswith(EXCLUDED)]
    assert len(names) > 300
    assert [
        found
        for name in names
        if (REPOSITORY / name).is_file()
        for found in phrases(name, (REPOSITORY / name).read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.md", "One.\nThe output is no terminal."),
        ("a.md", "What is wrong is reported."),
        ("a.yml", "msg: the role brings tensorflow"),
        ("a.py", 'x = f"{name} is no job id"'),
        ("a.py", '"""Do it.\n\nWhoever calls this: somebody takes part.\n"""'),
    ],
)
def test_a_phrase_is_found(name: str, source: str) -> None:
    assert phrases(name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.md", "There is no limit, and it is no longer than before."),
        ("a.py", "anew = brings.takes"),
    ],
)
def test_other_words_are_not(name: str, source: str) -> None:
    assert phrases(name, source) == []
