"""JSON as stores write it: compact, ASCII, without NaN, by an encoder that is made once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def _refuse(value: object) -> Any:
    raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")


def _encoder() -> Callable[[Any], str]:
    """Return an encoder that is made once; ``JSONEncoder.encode`` makes one for every call. Without the C accelerator
    of the standard library there is only that."""
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    chunks = make(None, _refuse, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
    join = "".join

    def encode(value: Any) -> str:
        return join(chunks(value, 0))

    return encode


to_text = _encoder()
"""Encodes a JSON value. Raises TypeError or ValueError for a value that is not JSON."""

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def from_text(text: str) -> Any:
    """Decode what ``to_text`` wrote. Raises ValueError for anything else."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError(f"not JSON: {text[:40]!r}") from None
    except RecursionError:
        raise ValueError(f"nested too deep: {text[:40]!r}") from None
    if end != len(text):
        raise ValueError(f"more than one JSON value: {text[:40]!r}")
    return value
