"""Operations on tokens: who may use the server, and what they may do."""

from __future__ import annotations

from typing import Annotated

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Name, Operation, Reason
from asterism.api.quick_dataclass import Request

Scopes = Annotated[list[str], Limit(min_length=1, max_length=100), Doc("observe, operate, series, admin or edit:PLAN.")]
Who = Annotated[str, Limit(min_length=1, max_length=100), Doc("Who uses it: the name in stories and edits.")]


class ListTokens(Request):
    """Tokens and browser sessions, those that ended in the last 30 days included."""


class CreateToken(Request):
    name: Who
    scopes: Scopes
    valid: Annotated[float, Limit(ge=0, le=1e10), Doc("How long it is valid, in seconds.")] = 90 * 86_400.0
    reason: Reason = ""


class RevokeToken(Request):
    token: Annotated[Name, Doc("Its id, the second part of the token.")]
    reason: Reason = ""


class CreateLogin(Request):
    """A login of a browser. ``name`` is by default the caller."""

    scopes: Scopes
    name: Who | None = None
    reason: Reason = ""


class TokenOperations:
    list_tokens = Operation(
        ListTokens, documents.Page[documents.Token], "List tokens and browser sessions.", "GET /tokens", needs="admin"
    )
    create_token = Operation(
        CreateToken, documents.CreatedToken, "Create a token.", "POST /tokens", needs="admin", status=201, secret=True
    )
    revoke_token = Operation(
        RevokeToken,
        documents.Token,
        "Revoke a token or a browser session: the next request with it is refused.",
        "POST /tokens/{token}/revoke",
        needs="admin",
    )
    create_login = Operation(
        CreateLogin,
        documents.LoginCode,
        "Make a code that logs one browser in, once.",
        "POST /logins",
        needs="admin",
        status=201,
        secret=True,
    )
