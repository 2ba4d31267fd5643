"""Health, and who one is: ``GET /health``, ``GET /me``, ``GET /login`` and ``POST /login``, ``POST /logout``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, RedirectResponse, Response

from asterism import __version__
from asterism.api import documents
from asterism.api.credentials import SESSION, SESSION_LIFETIME, TOKEN, LoginRefused
from asterism.server.endpoint import Call, Endpoint
from asterism.server.request_guard import client_of, cookie_header
from asterism.store.store_errors import StoreError


class LoginQuery(BaseModel, extra="forbid"):
    code: str = Field(max_length=100)


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
    assert call.caller is not None
    return client_of(call.caller)


async def login(call: Call) -> Response:
    """Exchange the one-time code of a link for a session, once. The page gets its key after the ``#`` of the address,
    which browsers send to no server."""
    try:
        new = await call.server.gate.redeem_login(call.request, call.query.code, SESSION)
    except LoginRefused:
        if "text/html" not in call.request.headers.get("accept", ""):
            raise
        return RedirectResponse("/", 303)  # the page of a browser that is logged in, or how to log in
    response = RedirectResponse(f"/#key={new.page_key}", 303)
    response.headers["set-cookie"] = cookie_header(call.server.gate, new.token, SESSION_LIFETIME)
    return response


async def login_command(call: Call) -> Any:
    """Exchange a one-time code for a token, once."""
    new = await call.server.gate.redeem_login(call.request, call.body.code, TOKEN)
    return documents.NewToken(token=new.token, **client_of(new.credential))


async def logout(call: Call) -> Response:
    """Revoke the credential of the request, and forget its cookie."""
    assert call.caller is not None
    await call.server.gate.credentials.revoke(call.caller.id)
    return JSONResponse({}, headers={"set-cookie": cookie_header(call.server.gate, "", 0)})


ENDPOINTS = (
    Endpoint("GET", "/health", health, "Whether the server can reach its store.", needs=None, answer=documents.Health),
    Endpoint("GET", "/me", me, "The caller: name and scopes.", needs="known", answer=documents.Me),
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
)
