"""Regular expressions for ``matches``, in linear time (``linear_regex``).

The syntax is that of RE2, which CEL requires, without Unicode classes (``\\p{…}``). It differs from that of the engine
in details, so a pattern is translated: classes and word boundaries know ASCII only, signs that combine sets of
characters stand for themselves, and so does a brace that is no repetition.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, NoReturn

from asterism.base.cel.cel_values import Evaluation, InvalidExpression, Unevaluable
from asterism.base.linear_regex import LinearPattern, NotAPattern, size_of

LONGEST = 1000
"""The longest pattern, in characters."""

LARGEST = 1000
"""The greatest size of a pattern, with its repeats written out. One of this size takes up to 3 MB."""

MOST_KEPT = 32
"""How many compiled patterns are kept for other evaluations."""

MOST_REPEATED = 1000

_COMPILING = 20
"""The cost of compiling one part of a pattern, in steps; that of any pattern is ten times as high."""

_PARTS_A_STEP = 128
"""How many parts of a pattern one step compares with a character."""

_SPECIAL = frozenset(r"\.+*?()|[]{}^$")
_CLASSES = {
    "d": "0-9",
    "D": r"\x00-/:-\x{10FFFF}",
    "w": "0-9A-Z_a-z",
    "W": r"\x00-/:-@\[-\^`\{-\x{10FFFF}",
    "s": r"\t\n\f\r ",
    "S": r"\x00-\x08\x0B\x0E-\x1F!-\x{10FFFF}",
}
_PLAIN_ESCAPES = frozenset("ntrfvaAz")
_BORDERS = {"b": r"(?-u:\b)", "B": r"(?-u:\B)"}
_POSIX = frozenset({"alnum", "alpha", "digit", "lower", "punct", "space", "upper", "word", "xdigit"})

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|x\{[0-9a-fA-F]{1,6}\}|.|\Z)"
_TOKENS = re.compile(
    rf"""(?P<escape>{_ESCAPE})
      | \[(?P<negated>\^?+)(?P<set>\]?+(?:\[:\w+:\]|{_ESCAPE}|[^\]\\])*)\]
      | (?P<repeat>(?:[*+?]|\{{(?P<least>\d{{1,4}})(?:,(?P<most>\d{{0,4}}))?\}})\??)
      | (?P<group>\((?:\?(?:P?<[A-Za-z_]\w*>|[imsU]*(?:-[imsU]+)?[:)]))?)
      | (?P<char>.)""",
    re.DOTALL | re.VERBOSE,
)
_SET_ITEM = re.compile(rf"\[:(\w+):\]|\\([dDwWsS])|({_ESCAPE}|.)(?:-({_ESCAPE}|[^\]]))?", re.DOTALL)


class Pattern(NamedTuple):
    """``compiled`` is None for a text without special characters, which is found as it is."""

    compiled: LinearPattern | None
    size: int


def matches(run: Evaluation, text: str, pattern: str) -> bool:
    """Whether a pattern is found anywhere in a text."""
    try:
        compiled, size = metered_pattern(run, pattern)
    except InvalidExpression as error:
        raise Unevaluable(str(error)) from None
    run.spend(1 + len(text) // 16 + len(text) * size // _PARTS_A_STEP)
    if compiled is None:
        return pattern in text
    if not text.isascii():  # the engine does not take half of a surrogate pair
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return compiled.is_found(text)


def metered_pattern(run: Evaluation, text: str) -> Pattern:
    """A compiled pattern. An evaluation pays for it once, whether it was kept for others or not: steps never depend on
    that. Raises InvalidExpression."""
    if text not in run.patterns:
        run.patterns[text] = _paid(run, text)
    return run.patterns[text]


def _paid(run: Evaluation, text: str) -> Pattern:
    run.spend(_COMPILING * 10 + 4 * len(text))
    if len(text) > LONGEST:
        raise InvalidExpression(f"a pattern has at most {LONGEST:,} characters")
    if not _SPECIAL.intersection(text):
        return Pattern(None, min(len(text), 100) // 4)
    translated, size = _translated(text)
    run.spend(_COMPILING * size)
    try:
        return Pattern(_compiled(translated), size)
    except NotAPattern as error:
        raise InvalidExpression(f"the pattern is not valid: {error}") from None


_compiled = lru_cache(MOST_KEPT)(LinearPattern)


@lru_cache(MOST_KEPT)
def _translated(text: str) -> tuple[str, int]:
    """A pattern in the syntax of the engine, and its size. Raises InvalidExpression."""
    parts, repeated = [], False
    for token in _TOKENS.finditer(text):
        if token["repeat"] is not None and repeated:
            _refuse(token, "a repetition of a repetition; write a group around the first one")
        repeated = token["repeat"] is not None
        parts.append(_part(token))
    translated = "".join(parts)
    size = size_of(translated)
    if size > LARGEST:
        raise InvalidExpression(f"the pattern is too large: its repeats make it {size:,} long; {LARGEST:,} is the most")
    return translated, size


def _part(token: re.Match[str]) -> str:
    text = token[0]
    if token["escape"] is not None:
        return f"[{_CLASSES[text[1:]]}]" if text[1:] in _CLASSES else _BORDERS.get(text[1:]) or _escaped(token, text)
    if token["set"] is not None:
        return f"[{token['negated']}{_set(token, token['set'])}]"
    if token["least"] is not None and max(int(token["least"]), int(token["most"] or 0)) > MOST_REPEATED:
        _refuse(token, f"a repetition is from 0 to {MOST_REPEATED:,}")
    if token["group"] == "(" and token.string.startswith("?", token.end()):
        _refuse(token, "a kind of group that is not supported")
    if token["char"] == "[":
        _refuse(token, "a set of characters that does not end")
    return rf"\{text}" if token["char"] in ("{", "}") else text


def _set(token: re.Match[str], content: str) -> str:
    """What is between the brackets of a set: items that are classes, characters and ranges."""
    parts = []
    for item in _SET_ITEM.finditer(content):
        posix, named, first, last = item.groups()
        if posix is not None and posix not in _POSIX:
            _refuse(token, f"there is no class [:{posix}:]")
        if posix is not None:
            parts.append(item[0])
        elif named is not None:
            parts.append(_CLASSES[named])
        else:
            ends = [_end(token, end) for end in (first, last) if end is not None]
            parts.append("-".join(ends))
    return "".join(parts)


def _end(token: re.Match[str], text: str) -> str:
    """A character in a set, which may be an escape."""
    if len(text) > 1:
        return _escaped(token, text)
    return rf"\{text}" if text in "[]&~^-" else text


def _escaped(token: re.Match[str], escape: str) -> str:
    char = escape[1:]
    if len(char) > 1 or (char in _PLAIN_ESCAPES and char):
        return escape
    if char and char.isascii() and not char.isalnum():
        return char if char in "<>" else escape  # the engine takes these escapes for borders
    _refuse(token, f"the escape \\{char} is not supported")


def _refuse(token: re.Match[str], what: str) -> NoReturn:
    raise InvalidExpression(f"the pattern is not valid at its character {token.start() + 1}: {what}")
