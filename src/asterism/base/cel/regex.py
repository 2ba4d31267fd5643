"""Regular expressions in linear time (Thompson's algorithm), for ``matches``.

Python's ``re`` backtracks and may take exponential time. Here all alternatives are followed at once, one character
after the other: each character costs at most as many steps as the pattern has instructions. The syntax is that of RE2,
which CEL requires, without Unicode classes (``\\p{…}``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from asterism.base.cel.cel_values import Evaluation, InvalidExpression, Unevaluable
from asterism.base.cel.regex_syntax import (
    Alternatives,
    Assertion,
    Char,
    Part,
    PatternParser,
    Repeated,
    Sequence,
)

LONGEST = 1000
"""The longest pattern, in characters."""

LARGEST = 2000
"""The most instructions of a compiled pattern. Counted repetitions are expanded."""

_COMPILING = 6
"""The cost of compiling a character or an instruction of a pattern, in steps."""

_PIECE = 2048
"""How many characters are searched for a prefix at once."""

_CHAR, _SPLIT, _JUMP, _ASSERT, _MATCH = range(5)

_SPECIAL = frozenset(r"\.+*?()|[]{}^$")


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
    try:
        compiled = metered_pattern(run, pattern)
    except InvalidExpression as error:
        raise Unevaluable(str(error)) from None
    if compiled.literal:
        run.spend(len(text) // 16 + len(text) * min(len(pattern), 100) // 512)
        return compiled.prefix in text
    return _search(run, compiled, text)


def metered_pattern(run: Evaluation, text: str) -> Pattern:
    """A compiled pattern, charged whether it was cached or not: steps never depend on that. Raises
    InvalidExpression."""
    run.spend(1 + _COMPILING * len(text))
    try:
        compiled = compiled_pattern(text)
    except _TooLarge:
        run.spend(_COMPILING * LARGEST)
        raise
    run.spend(_COMPILING * len(compiled.instructions))
    return compiled


def _search(run: Evaluation, pattern: Pattern, text: str) -> bool:
    threads: list[int] = []
    at, end = 0, len(text)
    while True:
        if not threads:  # no match has begun: skip to the next possible start
            if pattern.anchored and at:
                return False
            if pattern.prefix:
                at = _next(run, pattern.prefix, text, at)
                if at < 0:
                    return False
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


def _next(run: Evaluation, prefix: str, text: str, at: int) -> int:
    """The next position of a prefix, or -1. Each piece is charged before it is searched."""
    while at < len(text):
        piece = min(_PIECE, len(text) - at)
        run.spend(1 + piece * min(len(prefix), 100) // 512)
        found = text.find(prefix, at, at + piece + len(prefix) - 1)
        if found >= 0:
            return found
        at += piece
    return -1


def _entered(run: Evaluation, pattern: Pattern, starts: list[int], text: str, at: int) -> list[int] | None:
    """The instructions that wait for a character, reached from ``starts``; None if there is a match."""
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
    parser, writer = PatternParser(text), _Writer()
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


class _TooLarge(InvalidExpression):
    """A pattern compiles to too many instructions."""


class _Writer:
    """Writes the instructions of a pattern. A repeated part is written as often as it is repeated."""

    def __init__(self) -> None:
        self.instructions: list[_Instruction] = []
        self._parts = 0

    def emit(self, kind: int, fits: Callable[[str], bool] | None = None, what: str = "") -> int:
        index = len(self.instructions)
        self.instructions.append(_Instruction(kind, fits, index + 1, index + 1, what))
        return index

    def _aim_here(self, split: int) -> None:
        """The next instruction is the second branch of a split."""
        self.instructions[split] = self.instructions[split]._replace(other=len(self.instructions))

    def _jump(self, index: int, to: int) -> None:
        self.instructions[index] = self.instructions[index]._replace(to=to)

    def write(self, part: Part) -> None:
        self._parts += 1  # also parts without an instruction, such as an empty group
        if self._parts > LARGEST:
            raise _TooLarge(f"the pattern is too large: it becomes more than {LARGEST:,} instructions")
        match part:
            case Char(fits, what):
                self.emit(_CHAR, fits, what)
            case Assertion(what):
                self.emit(_ASSERT, what=what)
            case Sequence(parts):
                for one in parts:
                    self.write(one)
            case Alternatives(parts):
                self._alternatives(parts)
            case Repeated(of, least, most):
                for _ in range(least):
                    self.write(of)
                if most is None:
                    self._loop(of)
                else:
                    self._optional(of, most - least)

    def _alternatives(self, parts: tuple[Part, ...]) -> None:
        jumps = []
        for one in parts[:-1]:
            split = self.emit(_SPLIT)
            self.write(one)
            jumps.append(self.emit(_JUMP))
            self._aim_here(split)
        self.write(parts[-1])
        for jump in jumps:
            self._jump(jump, len(self.instructions))

    def _loop(self, part: Part) -> None:
        split = self.emit(_SPLIT)
        self.write(part)
        self._jump(self.emit(_JUMP), split)
        self._aim_here(split)

    def _optional(self, part: Part, times: int) -> None:
        splits = []
        for _ in range(times):
            splits.append(self.emit(_SPLIT))
            self.write(part)
        for split in splits:
            self._aim_here(split)
