"""The connection of a device to a gateway: one address and a key, no store. The server makes each step.

Messages are batched as commits are: while one message with steps is under way, the next steps gather and leave together
when it is answered. A step whose answer was lost is sent again; the server recognises it (``device_connection.py``).

When the server is away, work goes on until the lease ends. The end of a run is kept in the outbox of the device, on its
disk, from the first time that it could not be delivered, and is delivered or refused later, if need be by the next
process of the device.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asterism.base.clock import BootClock, Clock, ServerClock
from asterism.base.content_store import ContentAccess, ContentCache, ContentFolder
from asterism.base.remembered import Remembered
from asterism.core.backoff import retry_delay
from asterism.core.errors import AsterismError, InvalidWorkflow, NotJson
from asterism.core.json_values import JsonObject, SizeLimit
from asterism.core.run import transitions
from asterism.core.run.circuit_breaker import Completion
from asterism.core.run.placement import Weights
from asterism.core.run.run import Owner, Progress, Run
from asterism.core.run.session import Session
from asterism.core.run.work import work_of
from asterism.execution.task_inputs import call_apart
from asterism.fleet.device.device_connection import (
    STEP_TIMEOUT,
    Complete,
    DeviceStep,
    End,
    Fail,
    OwnerStep,
    Refuse,
    Standing,
)
from asterism.fleet.device.membership import DeviceNameTaken, prepare_host
from asterism.fleet.device.process_records import state_directory
from asterism.fleet.fleet import InProcessDevice
from asterism.fleet.ledger import blob_of, is_small
from asterism.fleet.settings import Settings, value_limit
from asterism.gateway.gateway_content import GatewayContent
from asterism.gateway.gateway_messages import (
    LARGEST_MESSAGE,
    MOST_TAKEN,
    POLL_TIME,
    GatewayRefused,
    GatewayTransport,
    Signer,
    log_json,
    log_parts,
    log_weight,
    parse_reply,
    report_batches,
    report_json,
    step_json,
)
from asterism.gateway.outbox import Outbox, StepQueue
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import HeartbeatReply, ProgressReport, PutLog, Watch
from asterism.store.row_codec import run_of
from asterism.store.store_errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from asterism.fleet.device.membership import DeviceHost
    from asterism.fleet.device.take_order import TakeOrder

log = logging.getLogger("asterism.device")

NO_LIMIT = float("inf")
RECONNECT_PAUSE, LONGEST_RETRY_PAUSE = 1.0, 15.0
"""How long a device waits after a request for work that was not answered, at first and at most, in seconds."""

LARGEST_RESULT = LARGEST_MESSAGE // 4
"""A larger result is stored apart, before the end of its run is sent, in bytes."""

TOKENS_REMEMBERED = 10_000
"""How many tokens of grants are remembered."""

CACHE_LIMIT = 4 * 1024**3
"""How much of the files that runs read is kept on this machine for the next runs, in bytes."""

RENEW_BEFORE = 60.0
"""How long before its end an access token is renewed, in seconds."""


class DeviceRevoked(StoreError):
    """The server no longer accepts the key of this device; everything it did was stopped."""


class GatewayAccess:
    """The access of an enrolled device to a gateway. ``key`` is its own key, ``outbox`` keeps results that could not be
    delivered."""

    def __init__(
        self,
        transport: GatewayTransport,
        key: Signer,
        outbox: Outbox,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.transport, self.key, self.outbox, self.store_time = transport, key, outbox, wall
        self.clock: Clock = clock or BootClock()
        self.chance = chance or random.Random()

    def connect(self, owner: Owner) -> GatewayConnection:
        return GatewayConnection(self, owner)


class GatewayConnection:
    """``owner`` is the session of the device. ``timeout`` is how long an answer may take, in seconds."""

    look_interval, looks_alone = POLL_TIME, False
    commits_together = False

    def __init__(self, access: GatewayAccess, owner: Owner, *, timeout: float = 10.0) -> None:
        self._access, self.owner, self._transport, self._timeout = access, owner, access.transport, timeout
        self.clock, self.url, self._chance = access.clock, access.transport.url, access.chance
        self._estimate = ServerClock(self.clock.time)
        self._estimate.learn(access.store_time(), self.clock.time())
        self._tokens: Remembered[tuple[str, int], str] = Remembered(TOKENS_REMEMBERED)
        self._access_token, self._renew_at = "", float("-inf")
        self._login, self._files_turn = asyncio.Lock(), asyncio.Lock()
        self._failures = 0  # since the last answer
        self._steps = StepQueue(self._ask_steps)
        self.log_limit = 0
        self._large = 0
        self._value_limit = Settings().value_limit

    def store_time(self) -> float:
        return self._estimate()

    def end_time(self) -> float:
        return self._estimate()

    def retry_pause(self) -> float:
        """Longer after each failure, and at random: a server that comes back has many devices."""
        return retry_delay(self._failures + 1, RECONNECT_PAUSE, LONGEST_RETRY_PAUSE, self._chance)

    # -- messages ----------------------------------------------------------------------------------------------------

    async def _ask(self, operation: str, body: Any = None, *, timeout: float | None = None) -> Any:
        """Send a message with the credential of this session. An expired credential is renewed once."""
        within = self._timeout if timeout is None else timeout
        for attempt in (1, 2):
            token = await self._token()
            try:
                answer = await self._send(operation, body if body is not None else {}, token, within)
                self._failures = 0
                return answer
            except StoreUnavailable:
                self._failures = min(self._failures + 1, 10)
                raise
            except GatewayRefused as refusal:
                if refusal.kind == "not_joined":  # the answer to a heartbeat decides whether the session is over
                    raise StoreUnavailable(str(refusal)) from None
                if refusal.kind != "expired" or attempt == 2:
                    raise
                if token == self._access_token:
                    self._renew_at = float("-inf")
        raise AssertionError

    async def _send(self, operation: str, body: Any, token: str | None, timeout: float) -> Any:
        try:
            return await self._transport.send(operation, body, token, timeout=timeout)
        except GatewayRefused as refusal:
            if refusal.kind == "revoked":
                raise DeviceRevoked(f"{self.url} has revoked device {self.owner.device!r}") from None
            raise

    async def _ask_steps(self, steps: list[JsonObject]) -> list[Any]:
        """Send steps, and return their answers. If the message is not valid, each step is sent alone: one that cannot
        be sent does not take others with it."""
        try:
            return list((await self._ask("steps", {"steps": steps}))["steps"])
        except GatewayRefused as refusal:
            if refusal.kind != "invalid":
                raise
            if len(steps) == 1:
                return [{"error": "invalid", "message": str(refusal)}]
        return [answer for step in steps for answer in await self._ask_steps([step])]

    async def _token(self) -> str:
        if self.clock.time() < self._renew_at:
            return self._access_token
        async with self._login:
            if self.clock.time() >= self._renew_at:
                await self._log_in()
            return self._access_token

    async def _log_in(self) -> None:
        """Get an access token, for a challenge that the key of the device has signed."""
        asked, device = self.clock.time(), {"device": self.owner.device}
        try:
            challenge = (await self._send("challenge", device, None, self._timeout))["challenge"]
            signature = self._access.key.sign("token", challenge, self.owner.session)
            proof = {"session": self.owner.session, "challenge": challenge, "signature": signature}
            answer = await self._send("token", device | proof, None, self._timeout)
        except GatewayRefused as refusal:
            if refusal.kind == "expired":
                raise StoreUnavailable(str(refusal)) from None
            raise
        self._access_token = answer["token"]
        self._renew_at = asked + max(0.0, answer["seconds"] - RENEW_BEFORE)
        self._estimate.learn(answer["now"], asked)

    def _received(self, record: Sequence[Any], token: str | None) -> Run:
        run = run_of(record)
        if token is not None:
            self._tokens[run.id, run.epoch] = token
        return run

    # -- the session -------------------------------------------------------------------------------------------------

    async def open(self) -> str:
        hello = await retry_on_conflict(
            lambda: self._ask("hello"), patience=60.0, clock=self.clock, chance=self._chance
        )
        self._large, self.log_limit = hello["large"], hello["log_limit"]
        self._value_limit = value_limit(hello["most"])
        await self._deliver_outbox()
        return str(hello["store"])

    async def _deliver_outbox(self) -> None:
        """Deliver what an earlier process of the device could not. Its runs are still its own until this one joins."""
        for name, data in self._access.outbox.waiting():
            run_id = str(data.get("run", ""))
            try:
                await self._deliver(run_id, data)
                log.info("delivered the result of an earlier process", extra={"run": run_id})
            except StoreUnavailable as error:
                log.warning("the result of an earlier process was not delivered: %s", error, extra={"run": run_id})
                continue
            except (AsterismError, ValueError) as error:
                log.warning("the result of an earlier process was refused: %s", error, extra={"run": run_id})
            self._access.outbox.remove(name)

    async def join(self, session: Session, host: DeviceHost, *, replace: bool) -> None:
        prepare_host(session, host)
        plain = {name: getattr(session, name) for name in ("host", "slots", "backlog", "accepts", "timeout")}
        body = {**plain, "can": sorted(session.can), "profile": dict(session.profile), "replace": replace}

        async def attempt() -> None:
            try:
                await self._ask("join", body)
            except GatewayRefused as refusal:
                raise DeviceNameTaken(str(refusal)) if refusal.kind == "name_taken" else refusal from None

        await retry_on_conflict(attempt, patience=60.0, outage_pause=(1.0, 1.0), clock=self.clock, chance=self._chance)

    async def beat(self, profile: Mapping[str, Any], reports: Sequence[ProgressReport]) -> HeartbeatReply:
        asked = self.clock.time()
        known = [(report, token) for report in reports if (token := self._tokens.get((report.run, report.epoch)))]
        *before, last = report_batches(known)
        try:
            for batch in before:
                await self._ask("output", {"reports": batch})
            data = await self._ask("beat", {"profile": dict(profile), "reports": last})
        except GatewayRefused as refusal:
            raise ValueError(str(refusal)) if refusal.kind == "invalid" else refusal from None
        reply, tokens = parse_reply(data)
        if "most" in data:  # a person may have changed it since
            self._value_limit = value_limit(data["most"])
        self._estimate.learn(reply.now, asked)
        for owned, token in zip(reply.held, tokens, strict=True):
            self._tokens[owned.run, owned.epoch] = token
        return reply

    async def drain(self) -> None:
        await self._ask("drain")

    async def leave(self) -> None:
        await self._ask("leave")

    def close(self) -> None:
        self._steps.close()

    def watch(self) -> Watch:
        return _Poll(self)

    def attach(self, device: InProcessDevice | None) -> None:
        """Nothing is created in the process of such a device."""

    # -- runs --------------------------------------------------------------------------------------------------------

    async def own_runs(self) -> list[Run]:
        answer = await self._ask("own")
        return [self._received(*row) for row in answer["runs"]]

    async def own_run(self, run_id: str) -> Run | None:
        answer = await self._ask("own", {"run": run_id})
        return next((self._received(*row) for row in answer["runs"]), None)

    async def has_offers(self) -> bool:
        return True  # as far as it knows: no run is created on such a device, so it never asks

    async def take(self, order: TakeOrder) -> list[Run]:
        kinds = order.kinds()
        body: JsonObject = {
            "limit": min(order.limit, MOST_TAKEN),
            "free": min(order.free, MOST_TAKEN),
            "above": order.above,
            "not_kinds": sorted(order.not_kinds),
            "kinds": {kind: scores.get(self.owner.device) for kind, scores in kinds.fresh.items()},
            "stale": sorted(kinds.stale),
            "held": order.held(),
            "vain_waits": order.vain_waits(),
        }
        answer = await self._ask("take", body)
        for kind, workflow, text in answer["unseen"]:
            try:
                sample: Run | None = transitions.create("", work_of(text), {}, by="", now=0.0, origin=(workflow, 0))
            except InvalidWorkflow as error:  # a later version of Asterism may have written it
                log.warning("runs of %s are not for this device: %s", workflow, error)
                sample = None
            order.unseen.kinds[kind] = sample
        taken = [self._received(*row) for row in answer["runs"]]
        order.met(taken, answer["stale"])
        order.look_in, order.look_when_free = answer.get("look_in"), bool(answer.get("look_when_free"))
        return taken

    async def change(
        self, run: str | Run, step: DeviceStep, *, patience: float = STEP_TIMEOUT, tries: int | None = None
    ) -> Run:
        run_id = run if isinstance(run, str) else run.id

        async def attempt() -> Run:
            answer = await self._steps.send(run_id, self._step_json(run_id, step))
            return self._received(*answer["run"])

        return await retry_on_conflict(attempt, patience=patience, tries=tries, clock=self.clock, chance=self._chance)

    def _step_json(self, run_id: str, step: DeviceStep) -> JsonObject:
        assert not isinstance(step, Refuse), "a gateway shows no run that is not granted"
        return step_json(step, self._tokens.get((run_id, step.grant.epoch)))

    async def end(self, run: Run, step: OwnerStep, log: Sequence[PutLog], *, tried: Run | None = None) -> None:
        *before, last = log_parts(log[0]) if log else [None]
        data = {**self._step_json(run.id, step), "run": run.id, "log": log_json(last)}
        weight = log_weight(last)
        kept: str | None = None

        async def attempt() -> None:
            nonlocal kept
            try:
                if before:
                    await self._put_log(run.id, step.grant.epoch, before)
                await self._deliver(run.id, data, weight)
            except StoreUnavailable:
                if kept is None and isinstance(step, Complete | Fail):
                    kept = self._access.outbox.put(data)
                raise

        try:
            await retry_on_conflict(attempt, patience=NO_LIMIT, clock=self.clock, chance=self._chance)
        except asyncio.CancelledError:
            kept = None  # it stays in the outbox, for the next process of this device
            raise
        finally:
            if kept is not None:
                self._access.outbox.remove(kept)

    async def _put_log(self, run_id: str, epoch: int, parts: Sequence[PutLog | None]) -> None:
        """Send the first parts of a long log, before the end of the run."""
        token = self._tokens.get((run_id, epoch), "")
        for part in parts:
            report = report_json(ProgressReport(run_id, epoch, None, "", part), token)
            await self._ask("output", {"reports": [report]})

    async def _deliver(self, run_id: str, data: Mapping[str, Any], weight: int = 0) -> None:
        """Send the end of a run. A large result goes before it, apart."""
        output = data.get("output")
        body = {name: value for name, value in data.items() if name not in ("run", "output")}
        if data["do"] == "complete":
            text = b"" if is_small(output) else await call_apart(_encoded, output)
            weight += len(text)
            if self._large and len(text) > min(self._large, LARGEST_RESULT):
                put = await self._ask("blob", text, timeout=self._timeout + len(text) / 100_000)
                body["blob"] = put["blob"]
            else:
                body["output"] = output
        await self._steps.send(run_id, body, weight)

    async def end_together(self, ends: Sequence[End]) -> None:
        raise NotImplementedError("steps are gathered in messages")

    async def ends_under_way(self) -> None:
        await self._steps.answered()

    async def notice_late_result(self, run_id: str, why: str) -> None:
        """The server leaves the notice, when it refuses the result."""

    async def progress_of(self, run_id: str, epoch: int) -> Progress | None:
        """The server adds the progress that it knows."""
        return None

    def ended(self, run: Run) -> None:
        """Nobody waits for runs in the process of such a device."""

    # -- values --------------------------------------------------------------------------------------------------------

    async def fetch_input(self, run: Run) -> Any:
        token = self._tokens.get((run.id, run.epoch))
        if blob_of(run.input) is None or token is None:
            return run.input
        data = await self._ask("fetch", {"grant": token}, timeout=self._timeout + run.input["size"] / 100_000)
        return await call_apart(json.loads, data)

    async def keep(self, value: Any, run: Run, what: str) -> Any:
        """The value itself: it leaves with the end of the run. Only its size is checked here."""
        if is_small(value) or (isinstance(value, str) and len(value) * 6 < self._value_limit.size):
            return value
        try:
            size = len(await call_apart(_encoded, value))
        except ValueError as error:
            raise NotJson(f"{what} cannot be written as JSON: {error}") from None
        self._value_limit.check(size, what)
        if blob_of(value) is not None:
            raise NotJson(f"{what} looks like a reference to a blob; put it into another object")
        return value

    async def value_limit(self) -> SizeLimit:
        return self._value_limit

    async def artifacts(self, run: Run) -> ContentAccess:
        token = self._tokens.get((run.id, run.epoch), "")
        content = GatewayContent(self.url, self._ask, token, self.clock, self._files_turn, timeout=self._timeout)
        folder = ContentFolder(state_directory() / "files", self._access.store_time)
        return ContentCache(content, folder, CACHE_LIMIT)

    # -- the fleet ---------------------------------------------------------------------------------------------------

    async def standing(self) -> Standing:
        answer = await self._ask("standing")
        return Standing(answer["rank"], Weights(**answer["weights"]), answer["devices"])

    async def recent_completions(self, workflow: str, limit: int) -> list[Completion]:
        answer = await self._ask("completions", {"workflow": workflow, "limit": limit})
        return [Completion(workflow, device, ended_at) for device, ended_at in answer["completions"]]

    async def announce_health(self, why: str | None) -> None:
        await self._ask("health", {"why": why})


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class _Poll:
    """Waits for work in requests that the server answers when there is some."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def wait(self, timeout: float) -> bool:
        seconds = min(timeout, POLL_TIME)
        try:
            answer = await self._connection._ask(
                "wait", {"seconds": seconds}, timeout=seconds + self._connection._timeout
            )
        except StoreUnavailable:
            await self._connection.clock.sleep(self._connection.retry_pause())
            return True  # what the server would have said is unknown
        return bool(answer["woken"])

    @property
    def woken(self) -> bool:
        """The server has to be asked first."""
        return False

    def close(self) -> None:
        """The server forgets a device that has left."""
