"""Operations of a server alone: its health, the login, and metrics as text. A store has none of them."""

from __future__ import annotations

from typing import Any

from asterism.api import documents
from asterism.api.operation import Operation
from asterism.api.quick_dataclass import Request


class AskServer(Request):
    """No more is needed."""


class RedeemLogin(Request):
    code: str


class ServerOperations:
    """They have endpoints of their own, so they are not in the table of operations."""

    health = Operation(AskServer, documents.Health, "Whether the server can reach its store.", "GET /health")
    me = Operation(AskServer, documents.Me, "The credential of this client: name and scopes.", "GET /me")
    redeem_login = Operation(
        RedeemLogin,
        documents.NewToken,
        "Exchange a one-time code of `asterism token login` for a token.",
        "POST /login",
        needs="known",
        once=True,
    )
    logout = Operation(AskServer, dict[str, Any], "Revoke the token of this client.", "POST /logout")
    metrics = Operation(AskServer, str, "Metrics of the fleet and its plans, as text.", "GET /metrics")
