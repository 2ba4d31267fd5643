"""A tracer of calls: which functions of a package run between two moments, in which order, and called by which.

It is installed with ``sys.setprofile`` in the thread that enters it and in every thread that starts while it is
installed. A function counts once, however often it runs. Lambdas and nested functions count, and a coroutine counts as
the function that it is. These do not count:

- properties: a reader takes them for attributes (what they call counts);
- bodies of modules and classes, and what these call: that happens when a module is imported, not on the way;
- comprehensions and generator expressions: later versions of Python inline some of them;
- code without a source file of the package, such as the methods that ``dataclass`` writes.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

INLINE = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
PROPERTIES = frozenset({"property", "cached_property"})
CO_OPTIMIZED = 0x1
"""The flag of code that is a function: the bodies of modules and classes do not have it."""


@dataclass(frozen=True, order=True)
class Function:
    """``file`` is relative to the package, ``line`` the first of the definition."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


@dataclass
class Call:
    """A function in the tree of calls. Calls of one function by the same caller are one; ``times`` counts them, and
    each time that a coroutine is resumed."""

    function: Function | None = None
    times: int = 0
    callees: dict[Function, Call] = field(default_factory=dict)

    def lines(self, depth: int = 0) -> Iterator[str]:
        if self.function is not None:
            times = f"  ×{self.times}" if self.times > 1 else ""
            yield f"{'  ' * depth}{self.function.name}  ({self.function.file}:{self.function.line}){times}"
        for call in self.callees.values():
            yield from call.lines(depth + (self.function is not None))

    def functions(self) -> Iterator[Function]:
        for function, call in self.callees.items():
            yield function
            yield from call.functions()


class Tracer:
    """Enter it before anything starts a thread, then ``start`` and ``stop`` it at the two moments, once or repeatedly.

    ``walks`` has the functions between each ``start`` and its ``stop``."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package.resolve()}/"
        for file in package.resolve().rglob("*.py"):
            _property_lines(str(file))  # now: CPython 3.11 cannot parse in two threads that are traced
        self._known: dict[CodeType, Function | None] = {}
        self._of_thread = threading.local()
        self._number = 0
        self._trees: dict[int, Call] = {}
        self.recording = False
        self.walks: list[frozenset[Function]] = []

    def __enter__(self) -> Self:
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.recording = False
        sys.setprofile(None)
        threading.setprofile(None)

    def start(self) -> None:
        self._trees = {}
        self._number += 1
        self.recording = True

    def stop(self) -> None:
        if self.recording:
            self.recording = False
            self.walks.append(frozenset(name for tree in self._trees.values() for name in tree.functions()))

    def tree(self) -> str:
        """The calls of the last walk, indented, with an empty line between threads."""
        return "\n\n".join("\n".join(tree.lines()) for tree in self._trees.values() if tree.callees)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.recording or (event != "call" and event != "return"):
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._package) or code.co_name in INLINE:
            return
        thread = self._of_thread
        if getattr(thread, "number", 0) != self._number:
            thread.number, thread.stack, thread.importing = self._number, [], 0
            self._trees[threading.get_ident()] = thread.tree = Call()
        if not code.co_flags & CO_OPTIMIZED:
            thread.importing = max(0, thread.importing + (1 if event == "call" else -1))
        elif not thread.importing:
            self._called(thread.tree, thread.stack, code, event)

    def _called(self, tree: Call, stack: list[tuple[CodeType, Call]], code: CodeType, event: str) -> None:
        if event == "return":
            if stack and stack[-1][0] is code:  # not a function that began before the recording
                stack.pop()
            return
        function = self._known[code] if code in self._known else self._named(code)
        if function is None:
            return
        caller = stack[-1][1] if stack else tree
        call = caller.callees.setdefault(function, Call(function))
        call.times += 1
        stack.append((code, call))

    def _named(self, code: CodeType) -> Function | None:
        """None for a property."""
        file, line = code.co_filename, code.co_firstlineno
        counts = line not in _property_lines(file)
        function = Function(file.removeprefix(self._package), line, code.co_qualname) if counts else None
        self._known[code] = function
        return function


@cache
def _property_lines(file: str) -> frozenset[int]:
    """The lines where properties begin, with their decorators."""
    return frozenset(
        node.decorator_list[0].lineno
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(decorator, ast.Name) and decorator.id in PROPERTIES for decorator in node.decorator_list)
    )
