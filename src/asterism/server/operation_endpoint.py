"""The endpoint of an operation: its path, query and body are made of the fields of its request."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from asterism.api.http_form import path_fields
from asterism.api.operation import Operation
from asterism.api.operations import OPERATIONS
from asterism.api.system import LocalSystem
from asterism.base.http_limits import RequestRefused
from asterism.server.endpoint import Call, Endpoint, NoModel


def endpoint_of(operation: Operation[Any, Any, Any]) -> Endpoint:
    """The endpoint that checks a request and calls its operation, in the name of the caller."""
    model = _model_of(operation)
    in_query = operation.method in ("GET", "DELETE")

    async def handle(call: Call) -> Any:
        fields = call.query if in_query else call.body
        return await system_of(call).call(operation, operation.request(**_path_values(operation, call), **vars(fields)))

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


def system_of(call: Call) -> LocalSystem:
    """The store of the server, in the name of the caller."""
    system = LocalSystem(call.fleet, call.editor, call.server.submitted, call.server.spawn, own=False)
    system.edited_plans = call.server.edited_plans  # those of all callers
    return system


def _model_of(operation: Operation[Any, Any, Any]) -> type[BaseModel]:
    """The model of the fields that are not in the path."""
    request: Any = operation.request
    hints, in_path = get_type_hints(request, include_extras=True), path_fields(operation.path)
    fields: dict[str, Any] = {}
    for one in dataclasses.fields(request):
        if one.name in in_path:
            continue
        default = ... if one.default is dataclasses.MISSING else one.default
        if one.default_factory is not dataclasses.MISSING:
            default = one.default_factory()
        fields[one.name] = (hints[one.name], default)
    text = request.__doc__ or ""
    documented = None if text.startswith(f"{request.__name__}(") else text
    config = ConfigDict(extra="forbid")
    model: type[BaseModel] = create_model(request.__name__, __config__=config, __doc__=documented, **fields)
    return model


def _path_values(operation: Operation[Any, Any, Any], call: Call) -> dict[str, Any]:
    """The fields in the path. Raises RequestRefused for a text where a number belongs."""
    hints = get_type_hints(operation.request)
    values: dict[str, Any] = dict(call.path)
    for name, text in call.path.items():
        if hints.get(name) is int:
            if not (text.isascii() and text.isdecimal() and len(text) <= 9):
                raise RequestRefused(404, f"the number of a {name} is a whole number")
            values[name] = int(text)
    return values


OPERATION_ENDPOINTS = tuple(endpoint_of(operation) for operation in OPERATIONS.values())
"""Those of all operations, in the order of the documentation. They are made at the import, before an event loop runs:
the models of the requests take some tenths of a second."""
