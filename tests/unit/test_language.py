"""Phrases and names that are not plain English, in documentation, messages, comments and code."""

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
    r"\b(?:two|between) looks\b": "checks, observations",
    r"\bsilent (?:hosts?|machines?|peers?|ranks?|servers?)\b": "unresponsive",
    # Ansible's auto_silent and auto_legacy_silent are settings.
    r"(?<!auto)(?<!legacy)_silent\b": "unanswered",
}
#: By the pattern of a name in Python code, the words to use instead.
NAMES_INSTEAD = {
    r"(?i)(?:^|_)looks?(?:_s)?$": "poll, checks, observe",
    r"(?i)(?:^|_)silent(?:_|$)": "unresponsive, unanswered",
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


def places_of(name: str, source: str) -> list[tuple[int, str, dict[str, str]]]:
    """Return the lines of a file with their numbers and the patterns that they may not match.

    Of code, these are the lines of its strings and comments, and its names.
    """
    if not name.endswith(".py"):
        return [(number, line, INSTEAD) for number, line in enumerate(source.splitlines(), 1)]
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            found.append((token.start[0], token.string, NAMES_INSTEAD))
        elif token.type in kinds:
            lines = token.string.strip("#\"' ").splitlines()
            found += [(token.start[0] + n, line, INSTEAD) for n, line in enumerate(lines)]
    return found


def phrases(name: str, source: str) -> list[str]:
    """Return the places of a file with one of the phrases or names, and the words to use."""
    return [
        f"{name}:{number}: {found.group()!r}: {instead}"
        for number, line, patterns in places_of(name, source)
        for pattern, instead in patterns.items()
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
        ("a.py", "_LOOK_S = 0.5  # seconds"),
        ("a.py", "#: Seconds between two looks at a file."),
        ("a.py", "is_silent = True"),
        ("a.yml", "__clock_silent: true"),
    ],
)
def test_a_phrase_is_found(name: str, source: str) -> None:
    assert phrases(name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.md", "There is no limit, and it is no longer than before."),
        ("a.py", "anew = brings.takes"),
        ("a.py", "if _looks_like_result('auto_legacy_silent'): pass"),
        ("a.yml", "interpreter_python: auto_silent"),
    ],
)
def test_other_words_are_not(name: str, source: str) -> None:
    assert phrases(name, source) == []
