"""What the server answers beside the operations: health, logins, streams of events and metrics."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from asterism import __version__
from asterism.api import documents
from asterism.api.credentials import SESSION, SESSION_LIFETIME, TOKEN, Credential, LoginRefused, allows
from asterism.api.documents import Doc
from asterism.api.local.fleet_handlers import metrics_families
from asterism.api.operation import Line, Name, path_fields
from asterism.api.operations import OPERATIONS, Operations
from asterism.api.request import Request
from asterism.base.http_limits import RequestRefused
from asterism.base.openmetrics import CONTENT_TYPE, render
from asterism.core.record import Meta, encode
from asterism.durable.journal_store import read_head
from asterism.fleet.audit_log import DONE, AuditEntry
from asterism.server.endpoint import Call, Endpoint
from asterism.server.event_stream import EventStream
from asterism.server.people_proxy import PROXY, WORD_LASTS
from asterism.server.request_guard import client_of, cookie_header
from asterism.store.store_errors import StoreError


class LoginQuery(Request):
    code: Line


async def health(call: Call) -> Response:
    """Whether the store answers. Anybody may ask, so the answer names nothing."""
    try:
        await call.fleet.store.register("store/id")
    except StoreError:
        return JSONResponse(
            {"status": "unavailable", "version": __version__, "problem": "the store does not answer"}, 503
        )
    return JSONResponse({"status": "ok", "version": __version__})


async def me(call: Call) -> Any:
    caller, people = call.caller, call.server.gate.people
    assert caller is not None
    shown = client_of(caller)
    if caller.kind == PROXY and people is not None:
        return {**shown, "expires_at": call.fleet.store.clock() + WORD_LASTS, "logout": people.logout}
    return {**shown, "logout": None}


class PermissionsQuery(Request):
    plan: Annotated[Name | None, Doc("Also the operations on this plan.")] = None


async def list_permissions(call: Call) -> Any:
    """What the page offers: it knows no scopes."""
    assert call.caller is not None
    allowed = operations_of(call.caller.scopes, call.query.plan)
    if call.server.proposer is None:
        allowed = [name for name in allowed if name != Operations.propose_edit.name]
    return documents.Permissions(operations=allowed)


def operations_of(scopes: Collection[str], plan: str | None) -> list[str]:
    """The names of the operations that scopes allow: in general, or also those on a plan."""
    known = {} if plan is None else {"plan": plan}
    return [
        operation.name
        for operation in OPERATIONS.values()
        if known.keys() >= set(path_fields(operation.needs)) and allows(scopes, operation.needs.format(**known))
    ]


LOG_IN, LOG_OUT = "log_in", "log_out"
"""What the audit log calls the ends of a session, which are no operations."""


async def _record(call: Call, what: str, caller: Credential) -> None:
    actor, at = call.server.actor_of(caller, call.request), call.fleet.store.clock()
    await call.server.audit_log.append(AuditEntry(at, operation=what, outcome=DONE, **encode(actor)))


async def login(call: Call) -> Response:
    """Exchange the one-time code of a link for a session, once. The page gets its key after the ``#`` of the address,
    which browsers send to no server."""
    try:
        new = await call.server.gate.credentials.redeem_login(call.query.code, SESSION)
    except LoginRefused:
        if "text/html" not in call.request.headers.get("accept", ""):
            raise
        return RedirectResponse("/", 303)  # the page of a browser that is logged in, or how to log in
    await _record(call, LOG_IN, new.credential)
    response = RedirectResponse(f"/#key={new.page_key}", 303)
    response.headers["set-cookie"] = cookie_header(call.server.gate, new.token, SESSION_LIFETIME)
    return response


async def login_command(call: Call) -> Any:
    """Exchange a one-time code for a token, once."""
    new = await call.server.gate.credentials.redeem_login(call.body.code, TOKEN)
    await _record(call, LOG_IN, new.credential)
    return documents.NewToken(token=new.token, **client_of(new.credential))


async def logout(call: Call) -> Response:
    """Revoke the credential of the request, and forget its cookie."""
    assert call.caller is not None
    if call.caller.kind == PROXY:
        raise RequestRefused(409, "you were logged in by the proxy of this server, and have to log out there")
    await call.server.gate.credentials.revoke(call.caller.id)
    await _record(call, LOG_OUT, call.caller)
    return JSONResponse({}, headers={"set-cookie": cookie_header(call.server.gate, "", 0)})


# -- what the api serves that is no document ---------------------------------------------------------------------------


METRICS_AGE = 5.0
"""How old served metrics may be, in seconds: they are computed for all who ask."""


async def metrics(call: Call) -> Response:
    """The metrics of the fleet and its plans, for Prometheus."""

    async def produce() -> str:
        return render(await metrics_families(call.fleet))

    return PlainTextResponse(await call.server.remembered("metrics", METRICS_AGE, produce), media_type=CONTENT_TYPE)


POSITION = r"^\d{1,19}(\.\d{1,19})?$"


class FollowQuery(Request):
    after: Annotated[Annotated[str, Meta(pattern=POSITION)] | None, Doc("A `position`; default: from now on.")] = None


async def follow_plan(call: Call) -> Any:
    """Follow a plan. `Last-Event-ID`, or `after` for the first connection, is the position to continue after."""
    after = call.request.headers.get("last-event-id") or call.query.after
    await read_head(call.fleet.store, call.path["plan"])
    return EventStream(call, await call.server.plan_feeds.events(call.path["plan"], after))


async def follow_fleet(call: Call) -> Any:
    """Follow runs, devices and notices. A client that was away for long gets a `reset`, and reads the lists again."""
    return EventStream(call, call.server.fleet_feed.events(call.request.headers.get("last-event-id")))


ENDPOINTS = (
    Endpoint("GET", "/health", health, "Whether the server can reach its store.", needs=None, answer=documents.Health),
    Endpoint("GET", "/me", me, "The caller: name and scopes.", needs="known", answer=documents.Me),
    Endpoint(
        "GET",
        "/me/operations",
        list_permissions,
        "The names of the operations that the caller may do.",
        needs="known",
        query=PermissionsQuery,
        answer=documents.Permissions,
    ),
    Endpoint(
        "GET", "/login", login, "Log a browser in with a one-time code.", None, LoginQuery, status=303, absolute=True
    ),
    Endpoint(
        "POST",
        "/login",
        login_command,
        "Exchange a one-time code for a token.",
        needs=None,
        body=LoginQuery,
        answer=documents.NewToken,
        secret=True,
    ),
    Endpoint("POST", "/logout", logout, "Revoke the credential of this request.", needs="known", answer={}),
    Endpoint(
        "GET",
        "/plans/{plan}/events",
        follow_plan,
        "Events as they come.",
        needs="observe plan {plan}",
        query=FollowQuery,
        media="text/event-stream",
    ),
    Endpoint("GET", "/metrics", metrics, "Metrics, for Prometheus.", media="application/openmetrics-text"),
    Endpoint("GET", "/events", follow_fleet, "Events of runs, devices and notices.", media="text/event-stream"),
)
