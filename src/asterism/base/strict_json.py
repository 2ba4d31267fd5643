"""Strict JSON: what other machines send. Refuses what the json module lets pass.

That is: NaN and infinities, numbers out of range, integers of any length, keys that occur twice, lone surrogates and
deep nesting.
"""

from __future__ import annotations

import json
from functools import partial
from math import isfinite
from typing import Any

MAX_DEPTH = 220
"""How deep a value may be nested: the limit of core/json_values.py, and the levels around it."""

MAX_DIGITS = 400
"""The most digits of an integer."""


class NotStrictJson(ValueError):
    """A text that is not strict JSON."""


def parse_strict(text: bytes | str, *, max_depth: int = MAX_DEPTH, max_digits: int = MAX_DIGITS) -> Any:
    """The value of a JSON text, nested at most ``max_depth`` deep, with integers of at most ``max_digits``. Raises
    NotStrictJson."""
    try:
        words = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            words,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=partial(_parse_int, max_digits),
            object_pairs_hook=_unique_keys,
        )
        _check_value(value, max_depth)
    except RecursionError:
        raise NotStrictJson("it is nested too deeply") from None
    except NotStrictJson:
        raise
    except ValueError as error:
        raise NotStrictJson(str(error)[:200]) from None
    return value


def _reject_constant(word: str) -> Any:
    raise NotStrictJson(f"{word} is not a valid number")


def _parse_float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise NotStrictJson(f"{text[:40]} is out of range")
    return value


def _parse_int(max_digits: int, text: str) -> int:
    if len(text) > max_digits:
        raise NotStrictJson(f"an integer has more than {max_digits} digits")
    return int(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotStrictJson("a key occurs twice")
    return members


def _check_value(value: Any, depth: int) -> None:
    """Refuse lone surrogates, and values that are nested more than ``depth`` deep."""
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, list | dict):
        if depth <= 0:
            raise NotStrictJson("it is nested too deeply")
        for one in value.values() if isinstance(value, dict) else value:
            _check_value(one, depth - 1)
        for key in value if isinstance(value, dict) else ():
            _check_text(key)


def _check_text(value: str) -> None:
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise NotStrictJson("it has a lone surrogate")
