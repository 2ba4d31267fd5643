"""The OpenAPI 3.1 document of the API, generated from the table of endpoints and their records."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any

from asterism import __version__
from asterism.api import documents
from asterism.core.json_values import JsonObject
from asterism.core.record import schema, schemas
from asterism.server.endpoint import Call, Endpoint
from asterism.server.problems import MEDIA_TYPE

REF = "#/components/schemas/{name}"
PARAMETER = {"type": "string", "minLength": 1, "maxLength": 500}
PROBLEM = {"$ref": REF.format(name="Problem")}

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
    kinds = [documents.Problem, *(kind for endpoint in endpoints for kind in _records(endpoint))]
    references, definitions = schemas(kinds, REF)
    named = dict(zip(kinds, references, strict=True))
    for endpoint in endpoints:
        if endpoint.body is not None:
            definition = definitions[named[endpoint.body]["$ref"].rpartition("/")[2]]
            definition.update(_without_path(definition, endpoint))
    paths: dict[str, JsonObject] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.full_path, {})[endpoint.method.lower()] = _operation(endpoint, named, definitions)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Asterism", "version": __version__, "description": __doc__.splitlines()[0]},
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "`asterism token create` makes one."},
                "session": {"type": "apiKey", "in": "cookie", "name": "asterism_session"},
                "page": {"type": "apiKey", "in": "header", "name": "X-Asterism-Page"},
            },
        },
    }


def _records(endpoint: Endpoint) -> Iterator[Any]:
    if _is_document(endpoint.answer):
        yield endpoint.answer
    if endpoint.body is not None:
        yield endpoint.body


def _without_path(definition: JsonObject, endpoint: Endpoint) -> JsonObject:
    """The fields of a request, and those that are required, without those in its path."""
    return {
        "properties": {
            name: part for name, part in definition["properties"].items() if name not in endpoint.parameters
        },
        "required": [name for name in definition["required"] if name not in endpoint.parameters],
    }


def _operation(endpoint: Endpoint, named: Any, definitions: JsonObject) -> JsonObject:
    operation: JsonObject = {
        "operationId": endpoint.name or re.sub(r"\W+", "_", f"{endpoint.method.lower()} {endpoint.path}").strip("_"),
        "summary": endpoint.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": PARAMETER} for name in endpoint.parameters),
            *_query_parameters(endpoint),
        ],
        "responses": {str(endpoint.status): _answer(endpoint, named), **_problems(endpoint)},
        "security": [] if endpoint.needs is None else [{"token": []}, {"session": [], "page": []}],
    }
    if endpoint.needs is not None:
        operation["x-needs"] = endpoint.needs
    if endpoint.body is not None:
        reference = named[endpoint.body]
        required = bool(definitions[reference["$ref"].rpartition("/")[2]]["required"])
        operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": reference}}}
    return operation


def _answer(endpoint: Endpoint, named: Any) -> JsonObject:
    if endpoint.media != "application/json":
        return {"description": endpoint.summary, "content": {endpoint.media: {"schema": {"type": "string"}}}}
    if _is_document(endpoint.answer):
        return {"description": endpoint.summary, "content": {"application/json": {"schema": named[endpoint.answer]}}}
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
            "content": {"application/json": {"schema": {"$ref": REF.format(name="Health")}}},
        }
    if endpoint.path.endswith("/move"):
        problems["202"] = {
            "description": "The device has not handed the run back yet; the move goes on.",
            "content": {"application/json": {"schema": {"$ref": REF.format(name="Run")}}},
        }
    return problems


def _query_parameters(endpoint: Endpoint) -> list[JsonObject]:
    described = _without_path(schema(endpoint.query), endpoint)
    parameters = []
    for name, part in described["properties"].items():
        # a parameter that is absent is never null
        shown = {key: value for key, value in part.items() if key not in ("anyOf", "default")}
        alternatives = [option for option in part.get("anyOf", ()) if option.get("type") != "null"]
        merged = {**(alternatives[0] if alternatives else {}), **shown}
        parameters.append({"name": name, "in": "query", "required": name in described["required"], "schema": merged})
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
