"""The OpenAPI 3.1 document of the API, generated from the table of endpoints and the models of their documents."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from asterism import __version__
from asterism.api import documents
from asterism.core.json_values import JsonObject
from asterism.server.endpoint import Call, Endpoint, NoModel
from asterism.server.problems import MEDIA_TYPE

REF = "#/components/schemas/{model}"
PARAMETER = {"type": "string", "minLength": 1, "maxLength": 500}
PROBLEM = {"$ref": REF.format(model="Problem")}

PROBLEMS = {
    "400": "The request cannot be read.",
    "401": "There is no valid credential.",
    "403": "The credential does not allow this, or the request comes from another origin.",
    "404": "What the path names does not exist.",
    "405": "The path has no such method.",
    "408": "The body came too slowly.",
    "409": "The state does not allow this.",
    "411": "The body has no declared length.",
    "413": "The request is too large.",
    "415": "The body is not JSON.",
    "421": "The Host is not one of this server.",
    "422": "The request is not valid; `violations` lists every reason.",
    "431": "The headers are too long.",
    "429": "Too many requests; Retry-After says when to try again.",
    "503": "The store is unavailable; try again later.",
    "504": "The process that runs the plan did not answer in time.",
}


def openapi_document(endpoints: Sequence[Endpoint]) -> JsonObject:
    """The document of these endpoints."""
    described: dict[tuple[Any, JsonSchemaMode], None] = {(documents.Problem, "serialization"): None}
    for endpoint in endpoints:
        described |= {(endpoint.answer, "serialization"): None} if _is_document(endpoint.answer) else {}
        described |= {(endpoint.body, "validation"): None} if endpoint.body is not None else {}
    adapters: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]]
    adapters = [(model, mode, TypeAdapter(model)) for model, mode in described]
    named, definitions = TypeAdapter.json_schemas(adapters, ref_template=REF)
    paths: dict[str, JsonObject] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.full_path, {})[endpoint.method.lower()] = _operation(endpoint, named)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Asterism", "version": __version__, "description": __doc__.splitlines()[0]},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "`asterism token create` makes one."},
                "session": {"type": "apiKey", "in": "cookie", "name": "asterism_session"},
                "page": {"type": "apiKey", "in": "header", "name": "X-Asterism-Page"},
            },
        },
    }


def _operation(endpoint: Endpoint, named: Any) -> JsonObject:
    operation: JsonObject = {
        "operationId": endpoint.name or re.sub(r"\W+", "_", f"{endpoint.method.lower()} {endpoint.path}").strip("_"),
        "summary": endpoint.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": PARAMETER} for name in endpoint.parameters),
            *_query_parameters(endpoint.query),
        ],
        "responses": {str(endpoint.status): _answer(endpoint, named), **_problems(endpoint)},
        "security": [] if endpoint.needs is None else [{"token": []}, {"session": [], "page": []}],
    }
    if endpoint.needs is not None:
        operation["x-needs"] = endpoint.needs
    if endpoint.body is not None:
        schema = named[(endpoint.body, "validation")]
        required = bool(endpoint.body.model_json_schema().get("required"))
        operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
    return operation


def _answer(endpoint: Endpoint, named: Any) -> JsonObject:
    if endpoint.media != "application/json":
        return {"description": endpoint.summary, "content": {endpoint.media: {"schema": {"type": "string"}}}}
    if _is_document(endpoint.answer):
        schema = named[(endpoint.answer, "serialization")]
        return {"description": endpoint.summary, "content": {"application/json": {"schema": schema}}}
    if endpoint.answer is None:
        return {"description": endpoint.summary}
    return {"description": endpoint.summary, "content": {"application/json": {"schema": {"type": "object"}}}}


def _problems(endpoint: Endpoint) -> JsonObject:
    """The problems that an endpoint may answer with."""
    content = {"content": {MEDIA_TYPE: {"schema": PROBLEM}}}
    problems = {status: {"description": text, **content} for status, text in PROBLEMS.items()}
    if endpoint.path == "/health":
        problems["503"] = {
            "description": "The store does not answer.",
            "content": {"application/json": {"schema": {"$ref": REF.format(model="Health")}}},
        }
    if endpoint.path.endswith("/move"):
        problems["202"] = {
            "description": "The device has not handed the run back yet; the move goes on.",
            "content": {"application/json": {"schema": {"$ref": REF.format(model="Run")}}},
        }
    return problems


def _query_parameters(query: type[BaseModel]) -> list[JsonObject]:
    if query is NoModel:
        return []
    schema = query.model_json_schema(mode="validation")
    required = schema.get("required", ())
    parameters = []
    for name, property_schema in schema["properties"].items():
        # a parameter that is absent is never null
        shown = {key: value for key, value in property_schema.items() if key not in ("anyOf", "default", "title")}
        alternatives = [
            alternative for alternative in property_schema.get("anyOf", ()) if alternative.get("type") != "null"
        ]
        merged = {**(alternatives[0] if alternatives else {}), **shown}
        parameters.append({"name": name, "in": "query", "required": name in required, "schema": merged})
    return parameters


def _is_document(answer: Any) -> bool:
    return answer is not None and not isinstance(answer, dict)


def openapi_endpoint(endpoints: Sequence[Endpoint]) -> Endpoint:
    """The endpoint that serves the document of these endpoints, itself included. The document is made when it is first
    asked for, beside the event loop: it takes a tenth of a second."""
    made: JsonObject = {}

    async def answer(call: Call) -> Any:
        if not made:
            made.update(await asyncio.to_thread(openapi_document, [*endpoints, own]))
        return made

    own = Endpoint("GET", "/openapi.json", answer, "This document.", needs=None, answer={})
    return own
