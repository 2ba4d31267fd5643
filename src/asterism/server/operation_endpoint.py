"""The endpoint of an operation: its path, query and body are made of the fields of its request."""

from __future__ import annotations

from typing import Any, get_type_hints

from asterism.api.http_form import path_fields
from asterism.api.local.request_models import request_model
from asterism.api.operation import Operation
from asterism.api.operations import OPERATIONS
from asterism.base.http_limits import RequestRefused
from asterism.server.endpoint import Call, Endpoint, NoModel


def endpoint_of(operation: Operation[Any, Any, Any]) -> Endpoint:
    """The endpoint that checks a request and calls its operation, in the name of the caller."""
    names = path_fields(operation.path)
    model, hints = request_model(operation, without=names), get_type_hints(operation.request)
    numbers = [name for name in names if hints.get(name) is int]
    in_query = operation.method in ("GET", "DELETE")

    async def handle(call: Call) -> Any:
        fields: dict[str, Any] = {**vars(call.query if in_query else call.body), **call.path}
        for name in numbers:
            fields[name] = _number(name, call.path[name])
        return await operation.function(call.system, operation.request(**fields))

    return Endpoint(
        operation.method,
        operation.path,
        handle,
        operation.text,
        needs=operation.needs,
        query=model if in_query else NoModel,
        body=None if in_query else model,
        answer=operation.answer,
        status=operation.status,
        edits=operation.edits,
        secret=operation.secret,
        name=operation.name,
    )


def _number(name: str, text: str) -> int:
    """A number in the path. Raises RequestRefused."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise RequestRefused(404, f"the number of a {name} is a whole number")
    return int(text)


OPERATION_ENDPOINTS = tuple(endpoint_of(operation) for operation in OPERATIONS.values())
"""Those of all operations, in the order of the documentation. They are made at the import, before an event loop runs:
the models of the requests take some tenths of a second."""
