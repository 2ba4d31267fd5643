"""Requests of operations as they come from outside: the model of their fields, and names in paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from asterism.api.operation import Operation
from asterism.base.http_limits import RequestRefused

WITH_SLASH = frozenset({"task", "device", "series", "batch", "limit"})
"""Names in paths that may have a ``/``. In the keys of a store it separates the others."""


def request_model(
    operation: Operation[Any, Any, Any], without: Collection[str] = (), **defaults: Any
) -> type[BaseModel]:
    """The model of the fields of a request, except ``without``; ``defaults`` take the place of its own."""
    request: Any = operation.request
    hints, fields = get_type_hints(request, include_extras=True), dict[str, Any]()
    for field in dataclasses.fields(request):
        if field.name in without:
            continue
        default = ... if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        fields[field.name] = (hints[field.name], defaults.get(field.name, default))
    text = request.__doc__ or ""
    documented = None if text.startswith(f"{request.__name__}(") else text
    config = ConfigDict(extra="forbid")
    model: type[BaseModel] = create_model(request.__name__, __config__=config, __doc__=documented, **fields)
    return model


def checked_name(kind: str, value: str) -> str:
    """A name in a path. Names are keys in the store and never paths of files, but what cannot be a name is refused
    before anything looks for it. Raises RequestRefused."""
    printable = bool(value) and len(value) <= 500 and value.isprintable()
    if not printable or ("/" in value and kind not in WITH_SLASH):
        raise RequestRefused(404, f"no {kind} has such a name")
    return value
