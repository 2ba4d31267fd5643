"""The gateway: what devices without a store ask, done with the identity of their credential.

Each operation is a method of ``Gateway`` with the identity of the caller and the body of the message. The gateway makes
the transition: a device says what happened to a run that it was granted, and shows the token of the grant; who the
device is comes from its access token, and what it may still do is decided by the epoch.

=============  =========================================================================================================
``hello``      the identity of the store, and the limits that a device has to know
``join``       enters the session of the credential
``output``     progress and output alone, if they are long
``beat``       a heartbeat with progress and output; the answer has the runs of the session and what people ask of them
``wait``       answered when there may be work, or after ``seconds``
``own``        the runs of the session, each with the token of its grant
``take``       takes offered runs of the given kinds, many at once
``steps``      steps on granted runs: claim, start, complete, fail, decline, break_off, release, disown
``blob``       stores a large result; ``fetch`` reads a large input
``upload``     adds a part to a file that a run has made, ``upload_end`` puts the whole of it under its hash
``download``   a part of a file in the input of a run
``standing``   the rank of the device, ``completions`` who completed a workflow lately
``health``     leaves a notice that the device has stopped taking work, or takes it again
``drain``      takes nothing more; ``leave`` ends the session
=============  =========================================================================================================
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

from asterism.base import expressions
from asterism.base.error_log import RecurringError
from asterism.core.json_values import JsonObject
from asterism.core.plan.task import plugins_in
from asterism.core.record import encode, replace
from asterism.core.run.run import ASSIGNED, Grant
from asterism.core.run.session import OPEN, VIA, Session
from asterism.core.run.work import SHORTEST_HEARTBEAT
from asterism.fleet.device import membership
from asterism.fleet.device.membership import DeviceNameTaken
from asterism.fleet.device.store_connection import StoreConnection
from asterism.fleet.device.take_order import LOOK_INTERVAL
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import blob_of
from asterism.fleet.stored_limits import LimitedQueue, Taken
from asterism.gateway.device_key import is_signed
from asterism.gateway.device_storage import DeviceFiles, DeviceStorage
from asterism.gateway.enrolment import ACCESS_TIME, CredentialRefused, DeviceCredentials, Identity, check_name, enrol
from asterism.gateway.gateway_messages import (
    BYTES_SENT,
    POLL_TIME,
    SESSION_ID,
    STEPS_AT_ONCE,
    GatewayRefusal,
    InvalidMessage,
    count_in,
    list_in,
    number_in,
    object_in,
    parse_part,
    parse_report,
    reply_json,
    text_in,
    texts_in,
)
from asterism.gateway.gateway_runs import (
    DeviceWatch,
    EnoughUnseen,
    GatewayOrder,
    GrantedRuns,
    Standings,
    checked_object,
)
from asterism.store.protocol import (
    LIMITED,
    OFFERED,
    HeartbeatReply,
    ProgressReport,
    Query,
    TakeRequest,
    for_device,
)
from asterism.store.store_errors import StoreError, StoreUnavailable

log = logging.getLogger("asterism.gateway")

HOST_SUFFIX = " (gateway)"
"""What the host of a session ends with that joined through a gateway."""

SILENT_FOR = 3600.0
"""After how long without a heartbeat a session is forgotten here, in seconds."""

WOKEN_TOGETHER = 50
"""How many devices are woken in one look because runs wait, at least; a tenth of them if they are more."""

LARGEST_FILE = 2**50
"""How large a file is at most, in bytes."""

LARGEST_PROFILE, LONGEST_PROFILE = 200, 64 * 1024
"""How many entries the profile of a device has at most, and how long it is as JSON: each heartbeat stores it."""

ENROLMENT = ("enrol", "challenge", "token")
"""The operations of a device that has no access token."""

OPERATIONS = frozenset(
    {"hello", "join", "output", "beat", "wait", "own", "take", "steps", "blob", "fetch", "upload"}
    | {"upload_end", "download", "standing", "completions", "health", "drain", "leave"}
)
"""The others. Each is a method of ``Gateway``, with a leading underscore."""

FRESH = ("hello", "join", "output", "beat", "take")
"""The operations before which the store is asked whether the device was revoked: it is given no run any more."""


class Gateway:
    """``fleet`` is that of the server. Call ``open`` first, and run ``look_for_work`` beside."""

    def __init__(self, fleet: Fleet, credentials: DeviceCredentials, store_id: str) -> None:
        self.fleet, self.credentials, self._store_id = fleet, credentials, store_id
        self._store, self._clock = fleet.store, fleet.clock
        self._sessions: dict[str, Session] = {}
        self._stopping = False
        self._heard: dict[str, float] = {}  # when a session last sent a heartbeat here
        self._healthy: dict[str, bool] = {}  # what a session last said here about its health
        self._watches: dict[str, DeviceWatch] = {}
        self._storage = DeviceStorage(fleet.store, fleet.clock, fleet.settings)
        self._files = DeviceFiles(fleet, self._storage)
        self._runs = GrantedRuns(fleet, credentials, self._storage, self._files)
        self._standings = Standings(fleet)

    @classmethod
    async def open(cls, fleet: Fleet) -> Gateway:
        store_id = await membership.store_identity(fleet.store, fleet.clock)
        return cls(fleet, await DeviceCredentials.open(fleet.store), store_id)

    async def close(self) -> None:
        """Wait until what runs beside the messages has stopped."""
        await self._files.close()

    # -- messages ----------------------------------------------------------------------------------------------------

    async def answer(self, operation: str, token: str | None, body: Any) -> Any:
        """Answer a message: JSON, or bytes for ``BYTES_ANSWERED``. Raises GatewayRefusal and StoreUnavailable."""
        try:
            if operation in ENROLMENT:
                return await getattr(self, f"_{operation}")(checked_object(body))
            if operation not in OPERATIONS:
                raise GatewayRefusal(404, "unknown", f"there is no operation {operation!r}")
            identity = await self.identify(token, fresh=operation in FRESH)
            perform: Callable[[Identity, Any], Awaitable[Any]] = getattr(self, f"_{operation}")
            return await perform(identity, body if operation in BYTES_SENT else checked_object(body))
        except ValueError as error:
            raise GatewayRefusal(400, "invalid", str(error)) from None

    async def identify(self, token: str | None, *, fresh: bool = False) -> Identity:
        """Who has an access token. Raises CredentialRefused."""
        if not token:
            raise CredentialRefused("an access token is needed", "expired")
        return await self.credentials.identify(token, fresh=fresh)

    async def _enrol(self, body: Mapping[str, Any]) -> Any:
        name, key, code = text_in(body, "device", 200), text_in(body, "key", 100), text_in(body, "code", 200)
        if not is_signed(key, text_in(body, "signature", 200), "enrol", code, name):
            raise CredentialRefused("the request was not signed by the key that it names")
        device = await enrol(self._store, code, name, key)
        log.info("enrolled device %s", name)
        return {"can": None if device.can is None else sorted(device.can), "store": self._store_id}

    async def _challenge(self, body: Mapping[str, Any]) -> Any:
        return {"challenge": self.credentials.challenge()}

    async def _token(self, body: Mapping[str, Any]) -> Any:
        names = [text_in(body, name, 300) for name in ("device", "session", "challenge", "signature")]
        if SESSION_ID.fullmatch(names[1]) is None:
            raise InvalidMessage("a session is named with letters, digits, '_' and '-', at most 100")
        token = await self.credentials.log_in(*names)
        return {"token": token, "seconds": ACCESS_TIME, "now": self._store.clock()}

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def _hello(self, who: Identity, body: Mapping[str, Any]) -> Any:
        settings = await self.fleet.settings()
        return {
            "store": self._store_id,
            "now": self._store.clock(),
            "large": min(settings.large, settings.most),
            "most": settings.most,
            "log_limit": settings.log_limit,
        }

    async def _join(self, who: Identity, body: Mapping[str, Any]) -> Any:
        host, can = text_in(body, "host", 300), frozenset(texts_in(body, "can", 200, 100))
        accepts = None if body.get("accepts") is None else text_in(body, "accepts", 10_000)
        check_name(who.owner.device)  # it may have been enrolled before names were reserved
        if host.startswith(VIA) or not host.isprintable():
            raise InvalidMessage("this host is not possible")
        if accepts is not None and (problem := expressions.check(accepts)) is not None:
            raise InvalidMessage(f"accepts is not valid: {problem}")
        if who.can is not None:  # it announces its plug-ins by itself, also those that it was not enrolled for
            can = frozenset(need for need in can if need in who.can or not plugins_in([need]))
        if who.can is not None and not can <= who.can:
            missing = ", ".join(sorted(can - who.can))
            known = ", ".join(sorted(who.can)) or "no capability"
            text = f"this device was not enrolled for {missing}, only for {known}"
            advice = "join without it, or make another code with: asterism device invite"
            raise GatewayRefusal(403, "capability", f"{text}: {advice}")
        session = Session(
            who.owner.session,
            who.owner.device,
            self._store.clock(),
            host=host + HOST_SUFFIX,
            can=can or who.can or frozenset(),
            slots=count_in(body, "slots", 10_000),
            backlog=count_in(body, "backlog", 10_000),
            accepts=accepts,
            timeout=number_in(body, "timeout", 86_400.0, least=2 * SHORTEST_HEARTBEAT),
            profile=_profile(body),
        )
        wants = body.get("replace") is True
        try:
            if wants:
                await self._check_replaceable(who)
            await membership.enter(self._store, self._clock, session, replace=wants, patience=0.0)
        except DeviceNameTaken as error:
            raise GatewayRefusal(409, "name_taken", str(error)) from None
        self._sessions[session.id] = session
        self._heard[session.id] = self._clock.time()
        return {}

    async def _check_replaceable(self, who: Identity) -> None:
        """A credential replaces only what joined through a gateway, with a credential of the same device."""
        for session in await self._store.sessions(device=who.owner.device):
            if session.state == OPEN and not session.host.endswith(HOST_SUFFIX):
                raise DeviceNameTaken(
                    f"device {session.device!r} shares the store, and a gateway does not replace it: choose another "
                    "name"
                )

    async def _session(self, who: Identity) -> Session:
        """The session of a credential. Raises GatewayRefusal if it has not joined, or is another device's."""
        known = self._sessions.get(who.owner.session)
        if known is None:  # it joined another server on this store, or this one before it was started again
            sessions = await self._store.sessions(device=who.owner.device)
            self._sessions |= {session.id: session for session in sessions if session.host.endswith(HOST_SUFFIX)}
            known = self._sessions.get(who.owner.session)
        if known is None or known.device != who.owner.device:
            raise GatewayRefusal(409, "not_joined", "this session has not joined, or is over")
        return known

    async def _beat(self, who: Identity, body: Mapping[str, Any]) -> Any:
        profile, reports = _profile(body), await self._reports(who, body)
        try:
            session = await self._session(who)
        except GatewayRefusal:
            if await self._store.register(f"device/{who.owner.device}") is None:
                raise StoreUnavailable(
                    "the store does not know this device: it is another one, or an empty one"
                ) from None
            return reply_json(HeartbeatReply(self._store.clock(), False, False, ()), ())
        reply = await self._store.heartbeat(who.owner.session, profile, reports)
        if not reply.alive:
            self._forget(who.owner.session)
            return reply_json(reply, ())
        self._sessions[session.id] = replace(session, profile=profile, used=len(reply.held), draining=reply.draining)
        self._heard[session.id] = self._clock.time()
        tokens = [self._runs.token_of(who, Grant(owned.run, who.owner.session, owned.epoch)) for owned in reply.held]
        return {**reply_json(reply, tokens), "most": (await self.fleet.settings()).most}

    async def _output(self, who: Identity, body: Mapping[str, Any]) -> Any:
        session = await self._session(who)
        await self._store.heartbeat(session.id, session.profile, await self._reports(who, body))
        return {}

    async def _reports(self, who: Identity, body: Mapping[str, Any]) -> list[ProgressReport]:
        """The reports of a message that are about runs of its session. One that is not valid is left out: the others
        count."""
        reports = []
        for data in map(checked_object, list_in(body, "reports", 10_000)):
            try:
                grant = self.credentials.grant_of(who.owner.device, data.get("grant"))
                report = parse_report(data, grant)
            except (CredentialRefused, ValueError) as error:
                log.debug("a report of device %s is not valid: %s", who.owner.device, error)
                continue
            if grant.session == who.owner.session:
                reports.append(
                    report._replace(log=report.log and await self._storage.log_part(who.owner.device, report.log))
                )
        return reports

    async def _drain(self, who: Identity, body: Mapping[str, Any]) -> Any:
        session = await self._session(who)
        self._sessions[session.id] = replace(session, draining=True)
        await membership.mark_draining(self._store, who.owner.session, who.owner.device)
        return {}

    async def _leave(self, who: Identity, body: Mapping[str, Any]) -> Any:
        await self._session(who)
        await membership.leave(self._store, who.owner.session, who.owner.device)
        self._forget(who.owner.session)
        return {}

    def _forget(self, session: str) -> None:
        self._sessions.pop(session, None)
        self._heard.pop(session, None)
        self._healthy.pop(session, None)
        watch = self._watches.pop(session, None)
        if watch is not None:
            watch.close()

    def _forget_silent(self) -> None:
        """Forget devices that left without a word. One that comes back is read from the store."""
        before = self._clock.time() - SILENT_FOR
        for session in [*self._sessions, *self._watches]:
            if self._heard.setdefault(session, self._clock.time()) < before:
                self._forget(session)

    # -- waiting for work --------------------------------------------------------------------------------------------

    async def _wait(self, who: Identity, body: Mapping[str, Any]) -> Any:
        """Answer when there may be work. A wake between two requests counts."""
        await self._session(who)
        if self._stopping:
            raise StoreUnavailable("the server is stopping")
        watch = self._watches.get(who.owner.session)
        if watch is None:
            topics = frozenset({OFFERED, LIMITED, for_device(who.owner.device)})
            self._watches[who.owner.session] = DeviceWatch(self._store.watch(topics))
            return {"woken": True}  # there may be work from before
        return {"woken": await watch.wait(number_in(body, "seconds", POLL_TIME))}

    def stop_waiting(self) -> None:
        """Answer the devices that wait, and let none wait any more: the server stops."""
        self._stopping = True
        for watch in self._watches.values():
            watch.wake()

    async def look_for_work(self) -> None:
        """Wake the devices that wait from time to time, if there is work: a wake of the store may get lost. One look
        for all of them. Runs until it is cancelled."""
        trouble = RecurringError(log, "cannot look for work of devices", "looks for work again", self._clock.time)
        while True:
            await self._clock.sleep(LOOK_INTERVAL)
            try:
                self._forget_silent()
                if self._watches:
                    await self._wake_waiting()
                trouble.recovered()
            except StoreError as error:
                trouble.occurred(error)

    async def _wake_waiting(self) -> None:
        assigned = {run.session for run in await self._store.find(Query(statuses=frozenset({ASSIGNED})))}
        everybody = bool(await self._store.waiting())
        for session in assigned:
            if session in self._watches:
                self._watches[session].wake()
        if everybody:  # in turn, if they are many: what waits may be for none of them
            for session in list(self._watches)[: max(WOKEN_TOGETHER, len(self._watches) // 10)]:
                watch = self._watches[session] = self._watches.pop(session)  # to the end
                watch.wake()

    # -- runs --------------------------------------------------------------------------------------------------------

    async def _own(self, who: Identity, body: Mapping[str, Any]) -> Any:
        await self._session(who)
        if body.get("run") is not None:
            run = await self._store.run(text_in(body, "run", 100))
            runs = [run] if run is not None and run.session == who.owner.session else []
        else:
            runs = await self._store.find(Query(session=who.owner.session))
        return {"runs": [self._runs.granted(who, run) for run in runs]}

    @cached_property
    def _limited(self) -> LimitedQueue:
        return LimitedQueue(self._store, self._clock)

    async def _take(self, who: Identity, body: Mapping[str, Any]) -> Any:
        order = GatewayOrder(self.fleet, who, await self._session(who), body)
        request = TakeRequest(who.owner.device, order.not_kinds, self._store.clock(), order.limit, order.above)
        try:
            taken = await self._limited.take(request, order.take, order.free)
        except EnoughUnseen:
            taken = Taken([])
        return {
            "runs": [self._runs.granted(who, run) for run in taken.runs],
            "look_in": taken.look_in,
            "look_when_free": taken.look_when_free,
            "unseen": [[kind, run.workflow, run.work.text] for kind, run in order.unseen.items()],
            "stale": sorted(order.met_stale),
        }

    async def _steps(self, who: Identity, body: Mapping[str, Any]) -> Any:
        return {"steps": await self._runs.make_all(who, list_in(body, "steps", STEPS_AT_ONCE))}

    # -- values, the fleet -------------------------------------------------------------------------------------------

    async def _blob(self, who: Identity, body: Any) -> Any:
        if not isinstance(body, bytes):
            raise InvalidMessage("a value is sent as bytes")
        settings = await self.fleet.settings()
        if len(body) > settings.most:
            raise GatewayRefusal(413, "too_large", f"the limit of this fleet is {settings.most:,} bytes")
        await self._storage.admit(who.owner.device)
        await self._storage.add(who.owner.device, len(body))
        name = await self._store.put_blob(body)
        return {"blob": self.credentials.blob_token(who.owner.device, name, len(body))}

    async def _fetch(self, who: Identity, body: Mapping[str, Any]) -> bytes:
        """The input of a granted run, if it is stored apart."""
        grant = self.credentials.grant_of(who.owner.device, body.get("grant"))
        run = await self._store.run(grant.run)
        name = None if run is None or run.grant != grant else blob_of(run.input)
        if name is None:
            raise GatewayRefusal(404, "unknown", "this grant has no input apart, or is over")
        data = await self._store.blob(name)
        if data is None:
            raise GatewayRefusal(404, "unknown", f"the blob {name} is missing")
        return data

    async def _upload(self, who: Identity, body: Any) -> Any:
        head, part = parse_part(body)
        offset = count_in(head, "offset", LARGEST_FILE)
        size = await self._files.append(*self._grant_in(who, head), text_in(head, "upload", 100), offset, part)
        return {"size": size}

    async def _upload_end(self, who: Identity, body: Mapping[str, Any]) -> Any:
        size, name = count_in(body, "size", LARGEST_FILE), text_in(body, "name", 100)
        content = await self._files.end(*self._grant_in(who, body), text_in(body, "upload", 100), size, name)
        return {"done": content is not None}

    async def _download(self, who: Identity, body: Mapping[str, Any]) -> bytes:
        _, grant = self._grant_in(who, body)
        return await self._files.read(grant, text_in(body, "name", 100), count_in(body, "offset", LARGEST_FILE))

    def _grant_in(self, who: Identity, body: Mapping[str, Any]) -> tuple[str, Grant]:
        """The device, and the grant of a message. Raises CredentialRefused."""
        return who.owner.device, self.credentials.grant_of(who.owner.device, body.get("grant"))

    async def _standing(self, who: Identity, body: Mapping[str, Any]) -> Any:
        ranks, weights = await self._standings.of(who.owner.device)
        return {"rank": ranks.get(who.owner.device, 0.0), "weights": encode(weights), "devices": len(ranks)}

    async def _completions(self, who: Identity, body: Mapping[str, Any]) -> Any:
        await self._session(who)
        workflow, limit = text_in(body, "workflow", 500), count_in(body, "limit", 1000)
        completions = await StoreConnection(self.fleet, who.owner).recent_completions(workflow, limit)
        return {"completions": [[completion.device, completion.ended_at] for completion in completions]}

    async def _health(self, who: Identity, body: Mapping[str, Any]) -> Any:
        why = None if body.get("why") is None else text_in(body, "why", 1000)
        session = await self._session(who)
        if self._healthy.get(session.id) != (why is None):
            self._storage.admit_notice(who.owner.device)
            await StoreConnection(self.fleet, who.owner).announce_health(why)
            self._storage.add_notice(who.owner.device)
            self._healthy[session.id] = why is None
        return {}


def _profile(body: Mapping[str, Any]) -> JsonObject:
    profile = object_in(body, "profile")
    if len(profile) > LARGEST_PROFILE:
        raise InvalidMessage(f"a profile has at most {LARGEST_PROFILE} entries")
    if len(json.dumps(profile)) > LONGEST_PROFILE:
        raise InvalidMessage(f"a profile has at most {LONGEST_PROFILE:,} characters")
    return profile
