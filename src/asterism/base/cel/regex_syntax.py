"""The parser of regular expressions in the syntax of RE2: from text to a tree of parts."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from asterism.base.cel.cel_values import InvalidExpression

DEEPEST = 32
"""How deep groups may be nested."""

MOST_REPEATED = 1000

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_DIGITS, _SPACES = (("0", "9"),), tuple((one, one) for one in "\t\n\f\r ")
_WORD = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACES}
_POSIX = {
    "alnum": (("0", "9"), ("A", "Z"), ("a", "z")),
    "alpha": (("A", "Z"), ("a", "z")),
    "digit": _DIGITS,
    "lower": (("a", "z"),),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": (*_SPACES, ("\v", "\v")),
    "upper": (("A", "Z"),),
    "word": _WORD,
    "xdigit": (("0", "9"), ("A", "F"), ("a", "f")),
}
_COUNT = re.compile(r"\{([0-9]{1,4})(,?)([0-9]{0,4})\}")
_GROUP = re.compile(r"\?(?:P?<([A-Za-z_][A-Za-z0-9_]*)>|([imsU]*)(?:-([imsU]+))?([:)]))")

Ranges = tuple[tuple[str, str], ...]


class Char(NamedTuple):
    fits: Callable[[str], bool]
    what: str = ""
    """The only matching character; None if there are several."""


class Assertion(NamedTuple):
    what: str


class Sequence(NamedTuple):
    parts: tuple[Part, ...]


class Alternatives(NamedTuple):
    parts: tuple[Part, ...]


class Repeated(NamedTuple):
    of: Part
    least: int
    most: int | None


Part = Char | Assertion | Sequence | Alternatives | Repeated


class _Flags(NamedTuple):
    any_case: bool = False
    dot_all: bool = False
    lines: bool = False

    def changed(self, on: str, off: str) -> _Flags:
        fields = {
            "i": "any_case",
            "s": "dot_all",
            "m": "lines",
        }  # U changes only greediness: no effect here
        given = {fields[one]: True for one in on if one in fields}
        return self._replace(**given, **{fields[one]: False for one in off if one in fields})


class PatternParser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.flags = _Flags()
        self.depth = 0

    def refuse(self, what: str) -> NoReturn:
        raise InvalidExpression(f"the pattern is not valid at its character {self.at + 1}: {what}")

    def _sees(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def whole(self) -> Part:
        part = self._alternatives()
        if self.at < len(self.text):
            self.refuse("a ) that closes nothing")
        return part

    def _alternatives(self) -> Part:
        parts = [self._sequence()]
        while self._sees("|"):
            self.at += 1
            parts.append(self._sequence())
        return Alternatives(tuple(parts)) if len(parts) > 1 else parts[0]

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            atom = self._atom()
            if atom is not None:
                parts.append(self._repeated(atom))
        return Sequence(tuple(parts))

    def _repeated(self, atom: Part) -> Part:
        """The quantifier after an atom: ``*``, ``+``, ``?``, ``{2,5}``, each perhaps with a ``?``."""
        least: int
        most: int | None
        found = _COUNT.match(self.text, self.at)
        if self.at < len(self.text) and self.text[self.at] in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.text[self.at]]
            self.at += 1
        elif found is not None:
            least = int(found.group(1))
            most = least if not found.group(2) else int(found.group(3)) if found.group(3) else None
            if least > MOST_REPEATED or (most is not None and not least <= most <= MOST_REPEATED):
                self.refuse(f"a repetition is from 0 to {MOST_REPEATED:,}, the smaller number first")
            self.at = found.end()
        else:
            return atom
        self.at += self._sees("?")
        if self.text.startswith(("*", "+", "?"), self.at) or _COUNT.match(self.text, self.at):
            self.refuse("a repetition of a repetition; write a group around the first one")
        return Repeated(atom, least, most)

    # -- atoms --

    def _atom(self) -> Part | None:
        """One atom; None for a change of flags, which cannot be repeated."""
        char = self.text[self.at]
        self.at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return self._set()
        if char == ".":
            return self._char((("\n", "\n"),) if not self.flags.dot_all else (), negated=True)
        if char == "^":
            return Assertion("line begin" if self.flags.lines else "begin")
        if char == "$":
            return Assertion("line end" if self.flags.lines else "end")
        if char == "\\":
            return self._escape()
        if char in "*+?" or (char == "{" and _COUNT.match(self.text, self.at - 1)):
            self.refuse("a repetition of nothing")
        return self._char(((char, char),))

    def _group(self) -> Part | None:
        flags = self.flags
        if self._sees("?"):
            found = _GROUP.match(self.text, self.at)
            if found is None:
                self.refuse("a kind of group that is not supported")
            self.at = found.end()
            if found.group(1) is None:
                self.flags = flags.changed(found.group(2), found.group(3) or "")
                if found.group(4) == ")":
                    return None
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"groups are nested more than {DEEPEST} deep")
        part = self._alternatives()
        if not self._sees(")"):
            self.refuse("a group that does not end")
        self.at += 1
        self.depth -= 1
        self.flags = flags
        return part

    def _escape(self) -> Part:
        char = self.text[self.at : self.at + 1]
        borders = {"b": "border", "B": "no border", "A": "begin", "z": "end"}
        if char in borders and char:
            self.at += 1
            return Assertion(borders[char])
        if char.lower() in _CLASSES and char:
            self.at += 1
            return self._char(_CLASSES[char.lower()], negated=char.isupper())
        char = self._escaped()
        return self._char(((char, char),))

    def _escaped(self) -> str:
        """The character that an escape denotes."""
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char in _ESCAPES and char:
            return _ESCAPES[char]
        if char == "x":
            found = re.compile(r"([0-9a-fA-F]{2})|\{([0-9a-fA-F]{1,6})\}").match(self.text, self.at)
            if found is not None and int(found.group(1) or found.group(2), 16) <= 0x10FFFF:
                self.at = found.end()
                return chr(int(found.group(1) or found.group(2), 16))
        elif char and not char.isalnum() and char.isascii():
            return char
        self.refuse(f"the escape \\{char} is not supported")

    def _set(self) -> Part:
        negated = self._sees("^")
        self.at += negated
        ranges: list[tuple[str, str]] = []
        begin = self.at
        while self.at == begin or not self._sees("]"):
            if self.at >= len(self.text):
                self.refuse("a set of characters that does not end")
            whole = self._class_in_set()
            if whole is not None:
                ranges += whole
                continue
            first = last = self._one_of_set()
            if self._sees("-") and not self._sees("-]"):
                self.at += 1
                last = self._one_of_set()
                if last < first:
                    self.refuse("a range of characters that is the wrong way round")
            ranges.append((first, last))
        self.at += 1
        return self._char(tuple(ranges), negated=negated)

    def _class_in_set(self) -> Ranges | None:
        found = re.compile(r"\[:(\w+):\]").match(self.text, self.at)
        if found is not None:
            if found.group(1) not in _POSIX:
                self.refuse(f"there is no class [:{found.group(1)}:]")
            self.at = found.end()
            return _POSIX[found.group(1)]
        name = self.text[self.at + 1 : self.at + 2]
        if not self._sees("\\") or name.lower() not in _CLASSES or not name:
            return None
        self.at += 2
        return _CLASSES[name] if name.islower() else _inverted(_CLASSES[name.lower()])

    def _one_of_set(self) -> str:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char == "\\":
            return self._escaped()
        if not char:
            self.refuse("a set of characters that does not end")
        return char

    def _char(self, ranges: Ranges, *, negated: bool = False) -> Part:
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and not negated and not self.flags.any_case:
            char = ranges[0][0]
            return Char(lambda one: one == char, char)
        return Char(_fitting(ranges, negated, self.flags.any_case))


def _inverted(ranges: Ranges) -> Ranges:
    inverted, low = [], 0
    for first, last in sorted(ranges):
        if ord(first) > low:
            inverted.append((chr(low), chr(ord(first) - 1)))
        low = ord(last) + 1
    return (*inverted, (chr(low), chr(0x10FFFF)))


def _fitting(ranges: Ranges, negated: bool, any_case: bool) -> Callable[[str], bool]:
    """Whether a character is in a set. The set may have many ranges: they are joined, and searched by bisection."""
    joined: list[list[str]] = []
    for first, last in sorted(ranges):
        if joined and ord(first) <= ord(joined[-1][1]) + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    firsts, lasts = [one[0] for one in joined], [one[1] for one in joined]

    def within(char: str) -> bool:
        index = bisect_right(firsts, char) - 1
        return index >= 0 and char <= lasts[index]

    if any_case:
        return lambda char: (within(char) or within(char.lower()) or within(char.upper())) != negated
    return (lambda char: not within(char)) if negated else within
