"""The API under random requests, made from its own OpenAPI document: no 5xx, no leak, and answers as documented."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asterism.api.credentials import Credentials
from asterism.base.listen_address import ListenAddress
from asterism.core.run.work import Workflow
from asterism.durable.journal_store import insert_plan
from asterism.fleet.fleet import Fleet
from asterism.fleet.one_time_code import secret_hash
from asterism.server import request_guard
from asterism.server.http_service import endpoints, http_service
from asterism.server.openapi import openapi_document
from asterism.store.memory import MemoryStore
from tests.durable.durable_scenes import chain

pytestmark = pytest.mark.long
"""To read the document takes the library longer than all requests."""

STREAMS = ("text/event-stream",)
PUBLIC = ("/api/v1/health", "/api/v1/openapi.json")
LEFT_OUT = ("/logout", "/login")
"""The one ends the credential of the test, the other is tested in tests/security."""

SHORT_WAIT = 0.05
"""How many seconds a request for something that may never come waits here."""


class FuzzedServer:
    """A server in a thread of its own, with something of everything in its store."""

    def __init__(self) -> None:
        self.url = ""
        self.tokens: dict[str, str] = {}
        self.known: dict[str, str] = {}
        self.hidden: list[str] = []
        self.ended = ""
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    async def _serve(self) -> None:
        fleet = Fleet(MemoryStore(), by="server")
        async with fleet, http_service(fleet, ListenAddress("127.0.0.1", 0)) as service:
            await fleet.workflows.add(Workflow("w", argv=["true"]))
            await insert_plan(fleet.store, chain("a", "b"))
            run = await fleet.create("w")
            self.ended = (await fleet.cancel((await fleet.create("w")).id)).id
            await fleet.schedules.add("s", workflow="w", every=3600)
            credentials = Credentials(fleet.store)
            for scope in ("admin", "observe"):
                self.tokens[scope] = (await credentials.create("fuzz", [scope], by="test")).token
            code = await credentials.create_login("fuzz", ["admin"], by="test")
            hashes = [secret_hash(secret) for secret in (*self.tokens.values(), code)]
            text = "Traceback (most recent"
            self.hidden = [*self.tokens.values(), code, *hashes, fleet.store.url, text, "site-packages", ".py"]
            self.known = {"plan": "nightly", "task": "a", "run": run.id, "schedule": "s", "series": "x", "version": "0"}
            self.url = service.url
            self._ready.set()
            await self._over.wait()

    @contextmanager
    def running(self) -> Iterator[FuzzedServer]:
        self._thread.start()
        assert self._ready.wait(60)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self._loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[FuzzedServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_guard, "REFUSALS_PER_MINUTE", 1_000_000)  # a fast machine sends more than 60
        with FuzzedServer().running() as server:
            yield server


CHOSEN = [endpoint for endpoint in endpoints() if endpoint.media not in STREAMS and endpoint.path not in LEFT_OUT]
OPERATIONS = [f"{endpoint.method} {endpoint.full_path}" for endpoint in CHOSEN]


@pytest.fixture(scope="module")
def operations() -> dict[str, Any]:
    import schemathesis  # takes half a second, so only the worker that runs these tests does it

    parsed = [result.ok() for result in schemathesis.openapi.from_dict(openapi_document(CHOSEN)).get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in parsed}


def test_every_endpoint_is_fuzzed(operations: dict[str, Any]) -> None:
    assert set(OPERATIONS) == set(operations)


OBSERVED = {
    f"{endpoint.method} {endpoint.full_path}"
    for endpoint in endpoints()
    if (endpoint.needs or "known").startswith(("known", "observe"))
}
FEW = [name for name in OPERATIONS if name.endswith(("/plans", "/edits", "/runs", "/actions", "/changes"))]


def fuzz(server: FuzzedServer, operation: Any, who: str, examples: int) -> None:
    """Random requests with the token of a scope, or without one (``stranger``)."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
    headers = {"authorization": f"Bearer {server.tokens[who]}"} if who in server.tokens else {}
    public = operation.path in PUBLIC
    names = {**server.known, "run": server.ended} if operation.path.endswith(("/wait", "/logs")) else server.known

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(), known=st.booleans())
    def send(case: Any, known: bool) -> None:
        if known and case.path_parameters:
            case.path_parameters.update({k: v for k, v in names.items() if k in case.path_parameters})
        if isinstance(wait := (case.query or {}).get("timeout"), int | float):
            case.query["timeout"] = min(wait, SHORT_WAIT)  # otherwise the server may wait as long as this client
        answer = case.call(base_url=server.url, headers=headers, timeout=60)
        assert not [secret for secret in server.hidden if secret in answer.text]
        if who == "stranger" and not public:
            assert answer.status_code in (400, 401, 404, 405, 429)
            assert not any(secret in answer.text for secret in server.known.values() if len(secret) > 4)
        if who == "observe" and f"{case.method} {operation.path}" not in OBSERVED:
            assert answer.status_code in (400, 403, 404, 405)
        case.validate_response(answer, checks=checks)

    send()


WHO = pytest.mark.parametrize("who", ["admin", "observe", "stranger"])


@WHO
@pytest.mark.parametrize("name", FEW)
def test_random_requests_get_documented_answers(
    server: FuzzedServer, operations: dict[str, Any], name: str, who: str
) -> None:
    fuzz(server, operations[name], who, 5 if who == "admin" else 2)


@WHO
@pytest.mark.parametrize("name", OPERATIONS)
def test_many_random_requests_get_documented_answers(
    server: FuzzedServer, operations: dict[str, Any], name: str, who: str
) -> None:
    fuzz(server, operations[name], who, 10 if who == "admin" else 3)
