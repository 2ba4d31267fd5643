"""Regular expressions in time that grows with the text alone, for ``matches``.

Python's own ``re`` tries one way after the other and may need for ever. Here all ways are followed at once, one
character after the other, as Thompson described it: each character costs at most as many steps as the pattern has
instructions. The syntax is that of RE2, which CEL asks for, without Unicode classes (``\\p{…}``).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from asterism.runtime.cel.errors import InvalidExpression, Unevaluable
from asterism.runtime.cel.values import Evaluation

LONGEST = 1000
"""How long a pattern may be, in characters."""

LARGEST = 2000
"""How many instructions a pattern may become: counted repetitions are written out."""

DEEPEST = 32
"""How deep groups may be nested."""

MOST_REPEATED = 1000

_COMPILING = 6
"""What a character or an instruction of a pattern costs, in steps, before anything is searched."""

_CHAR, _SPLIT, _JUMP, _ASSERT, _MATCH = range(5)

_SPECIAL = frozenset(r"\.+*?()|[]{}^$")
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


class _Instruction(NamedTuple):
    kind: int
    fits: Callable[[str], bool] | None = None
    to: int = 0
    other: int = 0
    what: str = ""


class Pattern(NamedTuple):
    instructions: tuple[_Instruction, ...]
    prefix: str
    """The characters with which every match begins."""
    literal: bool
    """Whether the prefix is the whole pattern."""
    anchored: bool
    """Whether a match can begin only where the text does."""


def matches(run: Evaluation, text: str, pattern: str) -> bool:
    """Whether a pattern is found anywhere in a text."""
    run.spend(1 + _COMPILING * len(pattern))
    try:
        compiled = compiled_pattern(pattern)
    except InvalidExpression as error:
        run.spend(_COMPILING * LARGEST)
        raise Unevaluable(str(error)) from None
    run.spend(_COMPILING * len(compiled.instructions))  # whether it was remembered or not: steps never depend on that
    if compiled.literal:
        run.spend(len(text) // 16 + len(text) * min(len(pattern), 100) // 512)
        return compiled.prefix in text
    return _search(run, compiled, text)


def _search(run: Evaluation, pattern: Pattern, text: str) -> bool:
    threads: list[int] = []
    at, end = 0, len(text)
    while True:
        if not threads:  # nothing has begun: go to where something can begin
            if pattern.anchored and at:
                return False
            if pattern.prefix:
                found = text.find(pattern.prefix, at)
                run.spend(1 + ((end if found < 0 else found) - at) * min(len(pattern.prefix), 100) // 512)
                if found < 0:
                    return False
                at = found
        entered = _entered(run, pattern, [*threads, 0], text, at)
        if entered is None:
            return True
        if at == end:
            return False
        char, threads = text[at], []
        for index in entered:
            instruction = pattern.instructions[index]
            if instruction.fits is not None and instruction.fits(char):
                threads.append(instruction.to)
        at += 1


def _entered(run: Evaluation, pattern: Pattern, starts: list[int], text: str, at: int) -> list[int] | None:
    """The instructions that wait for a character, from ``starts`` on; None if one of the ways is a match."""
    waiting: list[int] = []
    seen = set(starts)
    stack = list(seen)
    run.spend(2 + 2 * len(stack))
    while stack:
        run.spend(2)
        index = stack.pop()
        kind, _, to, other, what = pattern.instructions[index]
        if kind == _CHAR:
            waiting.append(index)
            continue
        if kind == _MATCH:
            return None
        if kind == _ASSERT and not _holds(what, text, at):
            continue
        for target in (to, other) if kind == _SPLIT else (to,):
            if target not in seen:
                seen.add(target)
                stack.append(target)
    return waiting


def _holds(what: str, text: str, at: int) -> bool:
    if what == "begin":
        return at == 0
    if what == "end":
        return at == len(text)
    if what == "line begin":
        return at == 0 or text[at - 1] == "\n"
    if what == "line end":
        return at == len(text) or text[at] == "\n"
    before, after = at > 0 and _is_word(text[at - 1]), at < len(text) and _is_word(text[at])
    return (before != after) == (what == "border")


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


@lru_cache(maxsize=256)
def compiled_pattern(text: str) -> Pattern:
    """A pattern, ready to be searched for. Raises InvalidExpression."""
    if len(text) > LONGEST:
        raise InvalidExpression(f"a pattern has at most {LONGEST:,} characters")
    if not _SPECIAL.intersection(text):
        return Pattern((), text, True, False)
    parser, writer = _Parser(text), _Writer()
    writer.write(parser.whole())
    writer.emit(_MATCH)
    instructions = tuple(writer.instructions)
    first = instructions[0]
    return Pattern(instructions, _prefix(instructions), False, first.kind == _ASSERT and first.what == "begin")


def _prefix(instructions: tuple[_Instruction, ...]) -> str:
    targets = {one.to for one in instructions if one.kind == _JUMP}
    targets |= {one.other for one in instructions if one.kind == _SPLIT}
    prefix = ""
    for index, one in enumerate(instructions):
        if one.kind != _CHAR or not one.what or index in targets:
            break
        prefix += one.what
    return prefix


class _Writer:
    """Writes the instructions of a pattern, and a repeated part as often as it is repeated."""

    def __init__(self) -> None:
        self.instructions: list[_Instruction] = []
        self._parts = 0

    def emit(self, kind: int, fits: Callable[[str], bool] | None = None, what: str = "") -> int:
        index = len(self.instructions)
        self.instructions.append(_Instruction(kind, fits, index + 1, index + 1, what))
        return index

    def _aim_here(self, split: int) -> None:
        """What is written next is the other way out of a split."""
        self.instructions[split] = self.instructions[split]._replace(other=len(self.instructions))

    def _jump(self, index: int, to: int) -> None:
        self.instructions[index] = self.instructions[index]._replace(to=to)

    def write(self, part: _Part) -> None:
        self._parts += 1  # also of parts that become no instruction, such as an empty group
        if self._parts > LARGEST:
            raise InvalidExpression(f"the pattern is too large: it becomes more than {LARGEST:,} instructions")
        match part:
            case _Char(fits, what):
                self.emit(_CHAR, fits, what)
            case _Assertion(what):
                self.emit(_ASSERT, what=what)
            case _Sequence(parts):
                for one in parts:
                    self.write(one)
            case _Alternatives(parts):
                self._alternatives(parts)
            case _Repeated(of, least, most):
                for _ in range(least):
                    self.write(of)
                if most is None:
                    self._loop(of)
                else:
                    self._optional(of, most - least)

    def _alternatives(self, parts: tuple[_Part, ...]) -> None:
        jumps = []
        for one in parts[:-1]:
            split = self.emit(_SPLIT)
            self.write(one)
            jumps.append(self.emit(_JUMP))
            self._aim_here(split)
        self.write(parts[-1])
        for jump in jumps:
            self._jump(jump, len(self.instructions))

    def _loop(self, part: _Part) -> None:
        split = self.emit(_SPLIT)
        self.write(part)
        self._jump(self.emit(_JUMP), split)
        self._aim_here(split)

    def _optional(self, part: _Part, times: int) -> None:
        splits = []
        for _ in range(times):
            splits.append(self.emit(_SPLIT))
            self.write(part)
        for split in splits:
            self._aim_here(split)


class _Char(NamedTuple):
    fits: Callable[[str], bool]
    what: str = ""
    """The only character that fits, if there is only one."""


class _Assertion(NamedTuple):
    what: str


class _Sequence(NamedTuple):
    parts: tuple[_Part, ...]


class _Alternatives(NamedTuple):
    parts: tuple[_Part, ...]


class _Repeated(NamedTuple):
    of: _Part
    least: int
    most: int | None


_Part = _Char | _Assertion | _Sequence | _Alternatives | _Repeated


class _Flags(NamedTuple):
    any_case: bool = False
    dot_all: bool = False
    lines: bool = False

    def changed(self, on: str, off: str) -> _Flags:
        fields = {"i": "any_case", "s": "dot_all", "m": "lines"}  # U is about greed, which makes no difference here
        given = {fields[one]: True for one in on if one in fields}
        return self._replace(**given, **{fields[one]: False for one in off if one in fields})


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.flags = _Flags()
        self.depth = 0

    def refuse(self, what: str) -> NoReturn:
        raise InvalidExpression(f"the pattern is not valid at its character {self.at + 1}: {what}")

    def _sees(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def whole(self) -> _Part:
        part = self._alternatives()
        if self.at < len(self.text):
            self.refuse("a ) that closes nothing")
        return part

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._sees("|"):
            self.at += 1
            parts.append(self._sequence())
        return _Alternatives(tuple(parts)) if len(parts) > 1 else parts[0]

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            atom = self._atom()
            if atom is not None:
                parts.append(self._repeated(atom))
        return _Sequence(tuple(parts))

    def _repeated(self, atom: _Part) -> _Part:
        """What follows an atom: ``*``, ``+``, ``?``, ``{2,5}``, each perhaps with a ``?``."""
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
        return _Repeated(atom, least, most)

    # -- atoms --

    def _atom(self) -> _Part | None:
        """One of them; None for a change of flags, which cannot be repeated."""
        char = self.text[self.at]
        self.at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return self._set()
        if char == ".":
            return self._char((("\n", "\n"),) if not self.flags.dot_all else (), negated=True)
        if char == "^":
            return _Assertion("line begin" if self.flags.lines else "begin")
        if char == "$":
            return _Assertion("line end" if self.flags.lines else "end")
        if char == "\\":
            return self._escape()
        if char in "*+?" or (char == "{" and _COUNT.match(self.text, self.at - 1)):
            self.refuse("a repetition of nothing")
        return self._char(((char, char),))

    def _group(self) -> _Part | None:
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

    def _escape(self) -> _Part:
        char = self.text[self.at : self.at + 1]
        borders = {"b": "border", "B": "no border", "A": "begin", "z": "end"}
        if char in borders and char:
            self.at += 1
            return _Assertion(borders[char])
        if char.lower() in _CLASSES and char:
            self.at += 1
            return self._char(_CLASSES[char.lower()], negated=char.isupper())
        char = self._escaped()
        return self._char(((char, char),))

    def _escaped(self) -> str:
        """The character that an escape stands for."""
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

    def _set(self) -> _Part:
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

    def _char(self, ranges: Ranges, *, negated: bool = False) -> _Part:
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and not negated and not self.flags.any_case:
            char = ranges[0][0]
            return _Char(lambda one: one == char, char)
        return _Char(_fitting(ranges, negated, self.flags.any_case))


def _inverted(ranges: Ranges) -> Ranges:
    inverted, low = [], 0
    for first, last in sorted(ranges):
        if ord(first) > low:
            inverted.append((chr(low), chr(ord(first) - 1)))
        low = ord(last) + 1
    return (*inverted, (chr(low), chr(0x10FFFF)))


def _fitting(ranges: Ranges, negated: bool, any_case: bool) -> Callable[[str], bool]:
    """Whether a character is in a set. The set may have many ranges: they are joined, and searched by halves."""
    joined: list[list[Any]] = []
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
