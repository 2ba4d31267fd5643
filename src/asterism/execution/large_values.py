"""Large JSON values are copied, encoded and parsed in a thread, so that the event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from asterism.core.json_values import is_large

Answer = TypeVar("Answer")

LARGE_TEXT = 1 << 18
"""A text that takes long to encode, decode or parse, in bytes."""


async def call_apart(function: Callable[..., Answer], value: Any, *more: Any) -> Answer:
    """Call a function with a value, and return its answer: in a thread if the value is large."""
    large = len(value) > LARGE_TEXT if isinstance(value, bytes | bytearray) else is_large(value)
    return await asyncio.to_thread(function, value, *more) if large else function(value, *more)
