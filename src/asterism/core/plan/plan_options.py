"""The options of a plan that a program, a command and an operation have in common.

The description of a field is its text in the help of commands and in the schema of the API.
"""

from __future__ import annotations

from typing import Annotated, Literal

from asterism.core.record import Meta, Record

LockPolicy = Literal["global", "scoped", "speculative"]
Strategy = Literal["score", "round_robin", "capability_match", "load_balance"]

APPROVAL_TIMEOUT = 86_400.0
"""Seconds after which an edit that waits for a person is refused."""

Seconds = Annotated[float, Meta(ge=0, le=1e10)]
SomeSeconds = Annotated[float, Meta(gt=0, le=1e10)]


class PlanOptions(Record, kw_only=True):
    """They are stored with a plan, so every owner goes by them."""

    edit_timeout: Annotated[
        Seconds, Meta(description="The plan goes on without an answer of its editor after this time.")
    ] = 600.0
    approval_timeout: Annotated[
        SomeSeconds, Meta(description="An edit that waits for a person is refused after this time.")
    ] = APPROVAL_TIMEOUT
    approval_escalation: Annotated[
        SomeSeconds | None, Meta(description="People are told again that an edit waits after this time.")
    ] = None
    no_device_timeout: Annotated[
        Seconds, Meta(description="How long a task waits for a device that can execute it.")
    ] = 300.0
    strategy: Annotated[Strategy, Meta(description="How to choose a device.")] = "score"
