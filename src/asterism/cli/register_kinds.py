"""Kinds of registers: what reads the values of each, so that the check of a store tries it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from asterism.api.credentials import CREDENTIALS, Credential
from asterism.core.attempt_log import LogChunk
from asterism.core.errors import AsterismError
from asterism.core.limits import Account as LimitAccount
from asterism.core.limits import Hold, Limit
from asterism.core.plan.edits import WaitingEdit
from asterism.core.run.work import Workflow
from asterism.core.schedule.schedule import Schedule
from asterism.core.schedule.ticks import Backfill, history_of
from asterism.core.series.machine import Series
from asterism.durable.editor_budget import stored_account
from asterism.durable.rejected_edits import RejectedEdit
from asterism.durable.task_logs import LOGS, PARTS, StoredLog
from asterism.fleet import audit_log, scheduled_work, sent_events, settings, workflows
from asterism.fleet.joinable_devices import DEVICES
from asterism.gateway.enrolment import EnrolledDevice
from asterism.models.cassette import Exchange
from asterism.peers.invitations import expiry_of
from asterism.peers.registry import PEER_PREFIX, Peer
from asterism.series.register import Change
from asterism.series.store_register import HISTORY_PREFIX, STATE_PREFIX
from asterism.store.protocol import LIMIT_ACCOUNTS, LIMIT_HOLDS, LIMITS, Register, Store

DECODERS: dict[str, Callable[[Any], Any]] = {
    audit_log.PREFIX: audit_log.AuditEntry.from_json,
    "approval/": WaitingEdit.from_json,
    scheduled_work.BACKFILLS: Backfill.from_json,
    "budget/": stored_account,
    CREDENTIALS: lambda value: Credential.from_json({**value, "id": ""}),
    DEVICES: lambda value: EnrolledDevice.from_json({**value, "name": ""}),
    sent_events.EVENTS: sent_events.SentEvent.from_json,
    sent_events.TAKEN: sent_events.EventTaker.from_json,
    "exchange/": Exchange.from_json,
    LOGS: lambda value: StoredLog.from_json({**value, "id": ""}),
    PARTS: lambda value: LogChunk.from_json(0, value),
    LIMITS: Limit.from_json,
    LIMIT_ACCOUNTS: LimitAccount.from_json,
    LIMIT_HOLDS: Hold.from_json,
    PEER_PREFIX: lambda value: expiry_of(value) if value.keys() == {"until"} else Peer.from_json({**value, "name": ""}),
    HISTORY_PREFIX: lambda value: Change(**value),
    STATE_PREFIX: lambda value: Series.from_document(json.loads(value["text"])),
    "rejected/": RejectedEdit.from_json,
    scheduled_work.SCHEDULES: lambda value: scheduled_work.REMOVED in value or Schedule.from_json(value),
    scheduled_work.HISTORY: history_of,
    settings.KEY: settings.from_stored,
    workflows.LATEST: lambda value: workflows.is_removed(value) or Workflow.from_json(value),
    workflows.VERSIONS: Workflow.from_json,
}
"""What reads the values of registers, by the beginnings of their keys."""


async def unreadable_registers(store: Store) -> list[str]:
    """A sentence for each register that cannot be read."""
    return [
        problem
        for prefix, decode in DECODERS.items()
        for register in await store.registers(prefix)
        if (problem := _problem(register, decode)) is not None
    ]


def _problem(register: Register, decode: Callable[[Any], Any]) -> str | None:
    try:
        register.read(decode)
    except AsterismError as error:
        named = register.key in str(error)
        return str(error) if named else f"register {register.key} cannot be read: {error}"
    return None
