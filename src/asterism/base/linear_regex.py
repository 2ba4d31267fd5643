"""Regular expressions in linear time, for texts and patterns that somebody else wrote.

Python's ``re`` backtracks, and a text may keep it busy for ever: ``(a+)+$`` and fifty letters. The engine of pydantic
(the crate ``regex`` of Rust) does not. Its time is at most the length of the text times the size of the pattern, with
repeats written out: ``(.{1,100}){1,50}`` has the size 5,000. The engine holds the interpreter while it matches, in a
thread as well, so the caller has to bound both. It has neither look-around nor references to groups.
"""

from __future__ import annotations

import re
from typing import Any

TOKENS = re.compile(
    r"""\\(?:[pPxu]\{[^}]*\}|.)                # an escape
      | \[\^?(?P<class>(?:\\.|[^\]\\])*)\]     # a class
      | \{(?P<least>\d+)(?:,(?P<most>\d*))?\}  # a repeat
      | \((?:\?P?<[^>=!]*>|\?(?P<flags>[a-zA-Z-]*)[:)])?
      | .""",
    re.DOTALL | re.VERBOSE,
)
"""The parts of a pattern that is valid."""


class NotAPattern(ValueError):
    """A text that the engine refuses. The message says why, and does not repeat the text."""


class LinearPattern:
    """A compiled pattern. Raises NotAPattern."""

    def __init__(self, pattern: str) -> None:
        from pydantic_core import SchemaError, SchemaValidator, core_schema  # most commands need not import it

        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        try:
            self._engine: Any = SchemaValidator(schema)
            return
        except SchemaError as error:
            why = str(error).rstrip().rpartition("\n")[2].strip().removeprefix("error: ").removeprefix("SchemaError: ")
        raise NotAPattern(why)  # out here: the error that the engine raised repeats the pattern, which may be a secret

    def is_found(self, text: str) -> bool:
        """Whether the pattern is found anywhere in a text. A text with half of a surrogate pair has no match."""
        matches: bool = self._engine.isinstance_python(text)
        return matches


def size_of(pattern: str) -> int:
    """The size of a pattern, with its repeats written out."""
    sums, last = [0], 0  # of each open group; the last part, which a repeat multiplies
    for token in TOKENS.finditer(pattern):
        text, part = token[0], 1
        if token["least"] is not None:
            times = int(token["most"] or token["least"])
            sums[-1] += last * max(times - 1, 0)
            last *= max(times, 1)
        elif text.startswith("(") and not text.endswith(")"):
            sums.append(0)
        elif text not in ("*", "+", "?"):
            if text == ")" and len(sums) > 1:
                part = sums.pop() + 1
            sums[-1] += part
            last = part
    return sum(sums)
