"""The base of requests."""

from __future__ import annotations

from typing import dataclass_transform

from asterism.core.record import Record, field


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Request(Record, forbid_unknown_fields=True):
    """What an operation is asked for: its fields are the parameters of the operation."""
