"""Messages between a device and a gateway: steps, runs, reports and errors as JSON.

A message never says who sends it: the credential does. A step on a run shows the token of its grant, which only the
gateway can make; it names the run and the epoch, so that no message can speak of another grant than the one that the
device was given. Both sides use the functions of this module.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, NamedTuple, Protocol

from asterism.base.strict_json import NotStrictJson, parse_strict
from asterism.core.attempt_log import LogChunk
from asterism.core.errors import AsterismError, Fenced, RunRefused
from asterism.core.json_values import JsonObject
from asterism.core.plan.task_files import is_content_name
from asterism.core.record import replace
from asterism.core.run.run import Grant, Progress, RunStatus
from asterism.fleet.device.device_connection import (
    BreakOff,
    Claim,
    Complete,
    Decline,
    Disown,
    Fail,
    OwnerStep,
    Release,
    Start,
)
from asterism.fleet.device.functions import MOST_STEPS
from asterism.fleet.ledger import UnknownRun
from asterism.store.protocol import HeartbeatReply, OwnedRun, ProgressReport, PutLog, StoredChunk
from asterism.store.store_errors import Conflict, StoreError, StoreUnavailable

PREFIX = "/gateway/v1"
"""Where the operations of a gateway are, below the address of the server."""

POLL_TIME = 50.0
"""How long a device waits for work in one request, in seconds."""

STEPS_AT_ONCE = 200
"""How many steps one message has at most."""

MOST_TAKEN = 1000
"""How many runs one message takes at most."""

LARGEST_MESSAGE = 4 * 1024 * 1024
"""How much one message of a device has at most, in bytes, by ``log_weight`` and the length of results. A server accepts
four times as much."""

FILE_PART = 2 * LARGEST_MESSAGE
"""How much of a file one message has at most, in bytes."""

BYTES_SENT, BYTES_ANSWERED = ("blob", "upload"), ("fetch", "download")
"""The operations whose message, or whose answer, is bytes instead of JSON."""

LARGEST_LOG_PART = 1024 * 1024
"""A log with more than this is sent in several messages, in bytes."""

LONGEST_TEXT = 64 * 1024

MOST_CHUNKS = 1_000
"""Of how many chunks a part of a log consists at most. A device cuts a part into about ten (``log_parts``)."""

MOST_LINES = 10**11
"""The largest number of a line of a log: the next line of a log is named with at most 12 digits."""

SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
"""The id of a session, which is part of the tokens of its grants."""

_GRANT = re.compile(r"astg_([A-Za-z0-9_-]{1,100})\.([0-9]{1,9})\.([A-Za-z0-9_-]{1,100})\.([0-9a-f]{32})")


class InvalidMessage(ValueError):
    """A message that is not as this protocol says."""


class GatewayRefusal(AsterismError):
    """A message that is not answered. ``status`` is that of HTTP, ``kind`` a word for the device."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class GatewayRefused(StoreError):
    """The server does not accept a message of this device, and will not. ``kind`` says why, as one word."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class GatewayTransport(Protocol):
    """Carries messages to a gateway."""

    url: str

    async def send(self, operation: str, body: Any, token: str | None, *, timeout: float) -> Any:
        """Send a message and return the answer. A body of bytes is a large value, and one that is answered by bytes is
        asked for with ``fetch``. Raises StoreUnavailable without an answer, GatewayRefused for a refusal."""

    async def close(self) -> None: ...


class Signer(Protocol):
    """The key of a device."""

    def sign(self, *words: str) -> str:
        """The signature of some words."""


class GrantToken(NamedTuple):
    """What the token of a grant says, and the code that only the gateway can make."""

    grant: Grant
    code: str


def grant_text(grant: Grant, code: str) -> str:
    return f"astg_{grant.run}.{grant.epoch}.{grant.session}.{code}"


def parse_grant(text: object) -> GrantToken:
    match = _GRANT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidMessage("a step needs the token of its grant")
    return GrantToken(Grant(match[1], match[3], int(match[2])), match[4])


def part_message(head: JsonObject, part: bytes | memoryview) -> bytes:
    """A part of a file as a message: a line of JSON that says where it belongs, and the bytes."""
    return b"".join((json.dumps(head).encode(), b"\n", part))


def parse_part(body: object) -> tuple[JsonObject, memoryview]:
    """Raises InvalidMessage."""
    end = body.find(b"\n", 0, LONGEST_TEXT) if isinstance(body, bytes) else -1
    if not isinstance(body, bytes) or end < 0:
        raise InvalidMessage("a part of a file begins with a line that says where it belongs")
    try:
        head = parse_strict(body[:end])
    except NotStrictJson as error:
        raise InvalidMessage(f"the first line is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise InvalidMessage("a message is a JSON object")
    return head, memoryview(body)[end + 1 :]


# -- fields ------------------------------------------------------------------------------------------------------------


def text_in(body: Mapping[str, Any], name: str, most: int = LONGEST_TEXT) -> str:
    """A text of a message. Raises InvalidMessage."""
    value = body.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise InvalidMessage(f"{name} must be a text of at most {most:,} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"{name} is not valid text") from None
    return value


def number_in(body: Mapping[str, Any], name: str, most: float, *, least: float = 0) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidMessage(f"{name} must be a number between {least:g} and {most:g}")
    return value


def count_in(body: Mapping[str, Any], name: str, most: int, *, least: int = 0) -> int:
    value = number_in(body, name, most, least=least)
    if not isinstance(value, int):
        raise InvalidMessage(f"{name} must be a whole number")
    return value


def list_in(body: Mapping[str, Any], name: str, most: int) -> list[Any]:
    value = body.get(name, [])
    if not isinstance(value, list) or len(value) > most:
        raise InvalidMessage(f"{name} must be a list of at most {most:,}")
    return value


def texts_in(body: Mapping[str, Any], name: str, most: int, longest: int = 600) -> list[str]:
    values = list_in(body, name, most)
    return [text_in({name: value}, name, longest) for value in values]


def object_in(body: Mapping[str, Any], name: str) -> JsonObject:
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise InvalidMessage(f"{name} must be an object")
    return value


def _progress(value: object) -> Progress | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidMessage("progress must be two numbers")
    step, total = value
    for number in (step, 0 if total is None else total):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_STEPS:
            raise InvalidMessage("progress must be two numbers")
    return Progress(step, total)


# -- steps -------------------------------------------------------------------------------------------------------------

_STEPS: Mapping[object, type[OwnerStep]] = {
    "claim": Claim,
    "start": Start,
    "complete": Complete,
    "fail": Fail,
    "decline": Decline,
    "break_off": BreakOff,
    "release": Release,
    "disown": Disown,
}
_NAMES = {kind: name for name, kind in _STEPS.items()}


def step_json(step: OwnerStep, token: str | None) -> JsonObject:
    """A step as data; ``token`` is that of its grant."""
    data: JsonObject = {"do": _NAMES[type(step)], "grant": token}
    for field in fields(step):
        value = getattr(step, field.name)
        if field.name == "progress":
            data |= {} if value is None else {"progress": list(value)}
        elif field.name not in ("grant", "device"):  # the gateway knows both
            data[field.name] = value[:LONGEST_TEXT] if field.type == "str" else value
    return data


def parse_step(data: Mapping[str, Any], grant: Grant, device: str) -> OwnerStep:
    """The step of a message, for a grant that was checked. Raises InvalidMessage."""
    kind = _STEPS.get(str(data.get("do")))
    if kind is None:
        raise InvalidMessage("there is no such step")
    values: dict[str, Any] = {"grant": grant, "device": device, "progress": _progress(data.get("progress"))}
    for field in fields(kind):
        if field.name not in values:
            values[field.name] = _step_value(data, field)
    if kind is Release and values["reason"] not in ("released", "preempted"):
        raise InvalidMessage("the reason of a release is released or preempted")
    return kind(**{field.name: values[field.name] for field in fields(kind)})


def _step_value(data: Mapping[str, Any], field: Field[Any]) -> Any:
    if field.type == "bool":
        return data.get(field.name) is True
    if field.name == "files":
        files = data.get("files")
        if files is not None and not (isinstance(files, str) and is_content_name(files)):
            raise InvalidMessage("files is not the name of a manifest")
        return files
    return text_in(data, field.name) if field.type == "str" else data.get(field.name)


# -- logs and reports --------------------------------------------------------------------------------------------------


def log_json(log: PutLog | None) -> JsonObject | None:
    if log is None:
        return None
    return {"chunks": [[chunk.first, chunk.value] for chunk in log.chunks], "drop": log.drop and list(log.drop)}


def parse_log(data: object, grant: Grant) -> PutLog | None:
    """A part of the log of a grant. Raises InvalidMessage."""
    if data is None:
        return None
    try:
        if not isinstance(data, dict):
            raise InvalidMessage("the log is not a JSON object")
        chunks = [LogChunk.from_json(_line(first), value) for first, value in list_in(data, "chunks", MOST_CHUNKS)]
        drop = data["drop"] and (_line(data["drop"][0]), _line(data["drop"][1]))
        if not all(math.isfinite(block.at) for chunk in chunks for block in chunk.blocks):
            raise InvalidMessage("a time is not finite")
        stored = [StoredChunk(grant.epoch, chunk.first, chunk.line_count, chunk.to_json()) for chunk in chunks]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"the log is not valid: {error}") from None
    return PutLog(grant.run, grant.epoch, stored, drop or None)


def _line(value: object) -> int:
    """The number of a line. Raises InvalidMessage."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_LINES:
        raise InvalidMessage(f"the number of a line must be a whole number between 0 and {MOST_LINES:,}")
    return value


def log_weight(log: PutLog | None) -> int:
    """How long a log is at most as JSON, in bytes: six times its characters."""
    if log is None:
        return 0
    return sum(6 * len(text) + 100 for chunk in log.chunks for _, _, text in chunk.value)


def log_parts(log: PutLog) -> list[PutLog]:
    """A log in parts of about LARGEST_LOG_PART, at least one; the last one drops what the log drops. The same lines
    are always cut at the same places, so that writing them again changes nothing."""
    if log_weight(log) <= LARGEST_LOG_PART:
        return [log]
    parts: list[list[StoredChunk]] = [[]]
    weight = 0
    for chunk in log.chunks:
        for piece in _chunk_pieces(chunk):
            its = log_weight(replace(log, chunks=[piece]))
            if parts[-1] and weight + its > LARGEST_LOG_PART:
                parts.append([])
                weight = 0
            parts[-1].append(piece)
            weight += its
    return [replace(log, chunks=part, drop=log.drop if part is parts[-1] else None) for part in parts]


def _chunk_pieces(chunk: StoredChunk) -> Iterator[StoredChunk]:
    """A chunk in pieces of whole lines."""
    blocks: list[list[Any]] = []
    first, size = chunk.first, 0
    for at, stream, text in chunk.value:
        lines: list[str] = []
        for line in text.split("\n"):
            if size + len(line) > LARGEST_LOG_PART // 12 and (blocks or lines):
                if lines:
                    blocks.append([at, stream, "\n".join(lines)])
                piece = LogChunk.from_json(first, blocks)
                yield StoredChunk(chunk.epoch, first, piece.line_count, piece.to_json())
                first, blocks, lines, size = first + piece.line_count, [], [], 0
            lines.append(line)
            size += len(line) + 20
        blocks.append([at, stream, "\n".join(lines)])
    yield StoredChunk(chunk.epoch, first, LogChunk.from_json(first, blocks).line_count, blocks)


def report_batches(reports: Iterable[tuple[ProgressReport, str]]) -> list[list[JsonObject]]:
    """Reports with the tokens of their grants as messages, at least one. The parts of a long log are in different
    messages."""
    batches: list[list[JsonObject]] = [[]]
    weight = 0
    for report, token in reports:
        parts: Sequence[PutLog | None] = [None] if report.log is None else log_parts(report.log)
        for number, part in enumerate(parts):
            its = log_weight(part) + 6 * len(report.tail) + 500
            if number or (batches[-1] and weight + its > LARGEST_MESSAGE):
                batches.append([])
                weight = 0
            batches[-1].append(report_json(report._replace(log=part), token))
            weight += its
    return batches


def report_json(report: ProgressReport, token: str) -> JsonObject:
    progress = None if report.progress is None else list(report.progress)
    return {"grant": token, "progress": progress, "tail": report.tail, "log": log_json(report.log)}


def parse_report(data: Mapping[str, Any], grant: Grant) -> ProgressReport:
    log, progress = parse_log(data.get("log"), grant), _progress(data.get("progress"))
    return ProgressReport(grant.run, grant.epoch, progress, text_in(data, "tail"), log)


# -- replies -----------------------------------------------------------------------------------------------------------


def reply_json(reply: HeartbeatReply, tokens: Sequence[str]) -> JsonObject:
    held = [[*owned, token] for owned, token in zip(reply.held, tokens, strict=True)]
    return {"now": reply.now, "alive": reply.alive, "draining": reply.draining, "held": held}


def parse_reply(data: Mapping[str, Any]) -> tuple[HeartbeatReply, list[str]]:
    held = [OwnedRun(run, epoch, RunStatus(status), request) for run, epoch, status, request, _ in data["held"]]
    tokens = [row[4] for row in data["held"]]
    return HeartbeatReply(data["now"], data["alive"], data["draining"], held), tokens


# -- errors ------------------------------------------------------------------------------------------------------------


_ERRORS: Mapping[str, type[Exception]] = {
    "unknown": UnknownRun,
    "fenced": Fenced,
    "refused": RunRefused,
    "conflict": Conflict,
    "unavailable": StoreUnavailable,
    "store": StoreError,
}
"""The errors of steps, each before those that it is one of; all others are ``invalid``."""


def error_json(error: Exception) -> JsonObject:
    """The error of a step, for the device that sent it."""
    kind = next((kind for kind, of_kind in _ERRORS.items() if isinstance(error, of_kind)), "invalid")
    if isinstance(error, RunRefused):
        return {"error": kind, "run": error.run_id, "message": error.why}
    return {"error": kind, "message": error.what if isinstance(error, Conflict) else str(error)}


def parse_error(data: Mapping[str, Any], run_id: str) -> Exception:
    kind, message = data["error"], str(data.get("message", ""))
    if kind == "unknown":
        return UnknownRun(run_id)
    arguments = (run_id, message) if kind in ("fenced", "refused") else (message,)
    return _ERRORS.get(kind, ValueError)(*arguments)
