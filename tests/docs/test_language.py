"""Refuses riddles of relative clauses in the documentation, the source and the docstrings of the tests.

House rule: plain technical English, with a subject, a verb and the exact term. A phrase of the list below hides the
subject ("whoever has it is told") or the term ("what is kept is sent"). Name the thing instead.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

REFUSED = (
    r"(?i)\bwhoever\b",
    r"\b[Ii]s none\b",
    r"(?i)\bis told\b",
    r"(?i)\bof which\b",
    r"(?i)\bwho is\b",
    r"(?i)\bwhat is (?:(?!after|if|until|when|while)\w+ ){1,8}is\b",
    r"(?i)\b(?:no|some|any)body knows\b",
)

ALLOWED = {
    r"there is none": "says that a thing does not exist",
    r"(?:each|none|one|some) of which": "counts things that were named before",
    r"because of which": "names a cause",
    r"what is written here by hand is overwritten": "is stored in tracking issues; another text would rewrite them all",
}
"""True uses of a refused phrase, each with its reason."""


_SUSPECTS = [re.compile(phrase) for phrase in (r"is\s+none\b", r"Is\s+none\b")]  # not "is None"
_SUSPECTS_IN_ANY_CASE = [
    re.compile(phrase)
    for phrase in (
        r"who(?:ever|\s+is)\b",
        r"is\s+told\b",
        r"of\s+which\b",
        r"what\s+is(?:\s+\w+){1,8}\s+is\b",
        r"body\s+knows",
    )
]


def suspect(text: str) -> bool:
    """Whether a text may have a refused phrase: most have none, and need no closer look. A pattern that begins with
    letters is searched for a hundred times as fast as one in any case, or one pattern for all phrases."""
    small = text.lower()
    return any(phrase.search(text) for phrase in _SUSPECTS) or any(
        phrase.search(small) for phrase in _SUSPECTS_IN_ANY_CASE
    )


def riddles(text: str) -> list[str]:
    """The refused phrases in a text, each with some words around it."""
    if not suspect(text):
        return []
    text = " ".join(text.split())
    for allowed in ALLOWED:
        text = re.sub(rf"\b{allowed}\b", "…", text, flags=re.IGNORECASE)
    hits = [match.span() for phrase in REFUSED for match in re.finditer(phrase, text)]
    return [f"…{text[max(0, start - 30) : end + 30]}…" for start, end in sorted(hits)]


# -- texts: (line, text) -----------------------------------------------------------------------------------------------


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """The paragraphs of a page."""
    line = 1
    for part in re.split(r"(\n\s*\n)", page):
        yield line, part
        line += part.count("\n")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    if not suspect(source):  # a docstring is one piece of the source
        return
    blocks: list[ast.AST] = [ast.parse(source)]
    while blocks:  # not ast.walk: no expression has a docstring
        node = blocks.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body[0].lineno if node.body else 1, ast.get_docstring(node) or ""
        inside = ast.iter_child_nodes(node)
        blocks += [part for part in inside if isinstance(part, ast.stmt | ast.excepthandler | ast.match_case)]


def literals(source: str) -> Iterator[tuple[int, str]]:
    """All strings, docstrings included; adjacent literals are one string."""
    if not suspect(re.sub(r"""["']\s*[bfr]*["']""", "", source.replace("\\n", " "), flags=re.IGNORECASE)):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """All comments; those on successive lines are one text."""
    first, last, text = 0, 0, ""
    if not suspect(" ".join(part.lstrip("# ") for part in re.findall("#.*", source))):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if text and token.start[0] != last + 1:
            yield first, text
            text = ""
        first, last = (first if text else token.start[0]), token.start[0]
        text += token.string.lstrip("# ") + " "
    yield first, text


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        yield from paragraphs(text)
    elif path.is_relative_to(ROOT / "tests"):
        yield from docstrings(text)
    else:
        yield from literals(text)
        yield from comments(text)


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["*.md", "docs/**/*.md", "src/**/*.py", "tests/**/*.py"])
def test_no_sentence_is_a_riddle(pattern: str) -> None:
    paths = [path for path in sorted(ROOT.glob(pattern)) if path != Path(__file__)]
    assert paths
    places = [
        f"{path.relative_to(ROOT)}:{line}: {riddle}"
        for path in paths
        for line, text in texts_of(path)
        for riddle in riddles(text)
    ]
    assert not places, "\n".join(places)


@pytest.mark.parametrize(
    "text",
    [
        "Whoever runs it does that",
        "an end that is none",
        "the loser is told",
        "a run, of\nwhich a copy exists",
        "who is late waits",
        "What is kept is sent",
        "nobody knows how it ended",
    ],
)
def test_a_riddle_is_noticed(text: str) -> None:
    assert len(riddles(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Returns the run; None if there is none.",
        "two servers, one of which redirects",
        "the value is None",
        "Check what is stored, and where it is.",
        "a known end outranks this",
    ],
)
def test_a_plain_sentence_is_accepted(text: str) -> None:
    assert riddles(text) == []


def test_strings_and_comments_are_read_as_a_whole() -> None:
    source = 'x = "a loser is "  "told"  # who\n# is first\n\ny = f"{x} is told"\n'
    assert [line for line, text in [*literals(source), *comments(source)] if riddles(text)] == [1, 4, 1]
