"""The base of requests, which makes its subclasses frozen dataclasses."""

from __future__ import annotations

from dataclasses import field
from typing import dataclass_transform

from asterism.core.lazy_dataclass import dataclass


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Request:
    """What an operation is asked for: a subclass is a frozen dataclass of its fields."""

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=kw_only)(cls)
