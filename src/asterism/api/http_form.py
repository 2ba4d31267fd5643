"""The HTTP form of an operation: which fields of its request are in the path, in the query and in the body."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from asterism.api.edit_operations import edits_json
from asterism.api.operation import Operation
from asterism.base.text import path_part
from asterism.core.errors import AsterismError

API = "/api/v1"
LARGEST_BODY = 4 * 1024 * 1024
"""The largest body of a request, in bytes."""

VERSION_HEADER = "asterism-version"
"""The version of who sends a request or an answer."""

KEY_HEADER = "idempotency-key"
"""The same for each repeat of a request that changes something: the server does it once."""


class KeyReused(AsterismError):
    """A key came with another request than before. Nothing was done."""


class NotKept(AsterismError):
    """A repeat of a request that was done, whose answer is not kept."""


class OutcomeLost(AsterismError):
    """It is unknown whether the first request with this key was done."""


class HttpForm(NamedTuple):
    """A request of an operation as it is sent. ``body`` is None for one without a body."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any] | None


def path_fields(path: str) -> list[str]:
    """The names of the fields in a path."""
    return re.findall(r"{(\w+)}", path)


def http_form(operation: Operation[Any, Any, Any], request: Any) -> HttpForm:
    """What to send for a request. Fields that have their default are left out: an older server need not know them."""
    in_path = path_fields(operation.path)
    path = operation.path.format(**{name: path_part(str(getattr(request, name))) for name in in_path})
    fields = {
        field.name: getattr(request, field.name)
        for field in dataclasses.fields(request)
        if field.name not in in_path and getattr(request, field.name) != _default(field)
    }
    if operation.method in ("GET", "DELETE"):
        return HttpForm(operation.method, API + path, {name: _text(value) for name, value in fields.items()}, None)
    if "edits" in fields and fields["edits"] is not None:
        fields["edits"] = edits_json(fields["edits"])
    return HttpForm(operation.method, API + path, {}, fields)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
