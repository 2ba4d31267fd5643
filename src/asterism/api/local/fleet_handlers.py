"""A fleet as a whole, its devices and the tokens of its server: what the operations of ``api/fleet_operations`` do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Mapping

from asterism.api import documents
from asterism.api import fleet_operations as declared
from asterism.api.credentials import CODE_LIFETIME, Credential, Credentials
from asterism.api.documents import document_of
from asterism.api.local.run_handlers import notice_document, run_documents
from asterism.api.operation import NoFields
from asterism.api.system import LocalSystem
from asterism.base.durations import format_age
from asterism.base.http_limits import RequestRefused
from asterism.base.openmetrics import Family, render
from asterism.base.text import masked_url, masked_urls
from asterism.core.json_values import plain_json
from asterism.core.limits import SERIES, uses_of
from asterism.core.record import asdict, encode
from asterism.core.run.run import FAILED, OWNED, Run, RunStatus
from asterism.core.run.session import OPEN, OWN_TASKS, PATH, REACHABLE_STATES, RESTING, Session
from asterism.fleet.audit_log import AuditFilter, is_place
from asterism.fleet.fleet import Fleet, UnknownDevice, new_run
from asterism.fleet.joinable_devices import state_of
from asterism.fleet.run_queries import AmbiguousRun, CancelledCount, find_run, take_snapshot
from asterism.fleet.selection_metrics import MAX_RUNS, WINDOW, fleet_families
from asterism.fleet.settings import Settings
from asterism.fleet.workflows import UnknownWorkflow
from asterism.store.protocol import ENDED, Notice, Query

PAGE = 1000
"""How many notices are read at once."""

LOOK_INTERVAL = 1.0
"""How often to look for new notices, in seconds; the end of a run wakes earlier."""


# -- settings ----------------------------------------------------------------------------------------------------------


async def show_settings(system: LocalSystem, request: NoFields) -> documents.Settings:
    return _settings(await system.fleet.settings())


async def change_settings(system: LocalSystem, request: declared.ChangeSettings) -> documents.Settings:
    changes = {
        name: value for name, value in asdict(request).items() if name != "reason" and value is not None and value != {}
    }
    for name in ("notify_command", "notify_url", "artifacts"):
        if name in changes:
            changes[name] = changes[name] or None
    settings = await system.fleet.configure(**changes)
    await system.leave_reason(f"changed the settings {', '.join(changes)}", request.reason)
    return _settings(settings)


def _settings(settings: Settings) -> documents.Settings:
    """The settings with masked addresses: observers read them."""
    words, url = settings.notify_command, settings.notify_url
    shown = {
        "notify_command": None if words is None else [masked_urls(word) for word in words],
        "notify_url": None if url is None else masked_url(url),
        "weights": encode(settings.weights),
    }
    return document_of(documents.Settings, settings, **shown)


# -- metrics -----------------------------------------------------------------------------------------------------------


async def metrics_families(fleet: Fleet, window: float = WINDOW, limit: int = MAX_RUNS) -> list[Family]:
    """The metrics of a fleet and of the plans in its store."""
    from asterism.durable.plan_metrics import plan_families  # with plans, which other operations do not need

    return [*await fleet_families(fleet, window, limit), *await plan_families(fleet.store, window)]


async def read_metrics(system: LocalSystem, request: declared.ReadMetrics) -> documents.Metrics:
    families = await metrics_families(system.fleet, request.window, request.limit)
    return documents.Metrics(text=render(families), families=[family.to_json() for family in families])


# -- notices -----------------------------------------------------------------------------------------------------------


async def list_notices(system: LocalSystem, request: declared.ListNotices) -> documents.Page[documents.Notice]:
    """``next`` is the number of the last notice that was read, whether it matched or not."""
    fleet = system.fleet
    run = None if request.run is None else (await find_run(fleet, request.run)).id
    if request.wait <= 0:
        return await _notices(fleet, request, run, request.after)
    watch = fleet.store.watch(frozenset({ENDED}))
    page = documents.Page[documents.Notice](items=[], next=str(request.after))
    with contextlib.closing(watch), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(request.wait):
            while not page.items:
                page = await _notices(fleet, request, run, int(page.next or 0))
                if not page.items:
                    await watch.wait(LOOK_INTERVAL)
    return page


async def _notices(
    fleet: Fleet, request: declared.ListNotices, run: str | None, after: int
) -> documents.Page[documents.Notice]:
    """The first notices after a number that match, or the latest."""
    matches: deque[tuple[int, Notice]] = deque(maxlen=request.limit if request.latest else None)
    start = None if request.since is None else fleet.store.clock() - request.since
    kinds = None if request.kind is None else set(request.kind.split(","))
    while request.latest or len(matches) < request.limit:
        wanted = PAGE if kinds or start is not None or request.latest else request.limit - len(matches)
        notices = await fleet.store.notices(run=run, after=after, limit=wanted)
        for number, notice in notices:
            if len(matches) == request.limit and not request.latest:
                break
            after = number
            if (kinds is None or notice.kind in kinds) and (start is None or notice.at >= start):
                matches.append((number, notice))
        if len(notices) < wanted:
            break
    items = [notice_document(number, notice) for number, notice in matches]
    return documents.Page(items=items, next=str(after), now=fleet.store.clock())


# -- the store ---------------------------------------------------------------------------------------------------------


async def show_store(system: LocalSystem, request: NoFields) -> documents.StoreInfo:
    fleet, store = system.fleet, system.fleet.store
    counts, now = await store.counts(), store.clock()
    cancelled = await CancelledCount().count(fleet, counts.get(FAILED, 0), ())
    devices = Counter(state_of(session, now) for session in await fleet.devices())
    series = {
        name: group.waiting
        for group in sorted(await store.limited(), key=lambda group: not group.waiting)
        for name in uses_of(group.uses)
        if name.startswith(SERIES)
    }
    return documents.StoreInfo(
        store=None if not system.own else store.url,
        clock=now,
        clock_ahead=round(now - time.time(), 3),
        runs=_run_counts(counts, cancelled),
        devices=dict(sorted(devices.items())),
        coordinator=await fleet.coordinator(),
        workflows=len(await fleet.workflows.all()),
        series=len(series),
        series_active=sum(not waiting for waiting in series.values()),
    )


def _run_counts(counts: Mapping[RunStatus, int], cancelled: int | None) -> dict[str, int]:
    """How many runs have each status. The store counts cancelled runs as failed; if there are too many to tell them
    apart, both are one number."""
    runs = {str(status): counts.get(status, 0) for status in RunStatus}
    failed = runs.pop(str(FAILED))
    if cancelled is None:
        return {**runs, "failed or cancelled": failed}
    return {**runs, str(FAILED): failed - cancelled, "cancelled": cancelled}


async def show_fleet(system: LocalSystem, request: declared.ShowFleet) -> documents.FleetView:
    fleet = system.fleet
    snapshot = await take_snapshot(fleet, request.limit, (), fleet.cancelled_count)
    ranks, coordinator = (await fleet.placer()).ranks, snapshot.coordinator
    devices = [
        device_document(session, snapshot.now, ranks, coordinator)
        for session in snapshot.sessions.values()
        if session.state in REACHABLE_STATES
    ]
    runs = {run.id: run for run in await run_documents(fleet, snapshot.runs)}
    return document_of(
        documents.FleetView,
        snapshot,
        counts={str(status): number for status, number in snapshot.counts.items()},
        devices=devices,
        owned=[runs[run.id] for run in snapshot.owned],
        waiting=[runs[run.id] for run in snapshot.waiting],
        ended=[runs[run.id] for run in snapshot.ended],
    )


# -- devices of a store ------------------------------------------------------------------------------------------------


LATEST_RUNS = 20
"""How many runs of a device are listed."""


async def device_documents(fleet: Fleet) -> list[documents.Device]:
    """Every device that is there, or was lately."""
    ranks, coordinator = (await fleet.placer(fresh=True)).ranks, await fleet.coordinator()
    now = fleet.store.clock()
    return [device_document(session, now, ranks, coordinator) for session in await fleet.devices()]


def device_document(
    session: Session, now: float, ranks: Mapping[str, float], coordinator: str | None
) -> documents.Device:
    """A device as every door shows it. A machine may report anything in its profile: a battery or labels of another
    type count as none."""
    rank, labels, battery = ranks.get(session.device), session.profile.get("labels"), session.profile.get("battery")
    is_number = isinstance(battery, int | float) and not isinstance(battery, bool)
    profile = {
        name: value for name, value in session.profile.items() if name not in ("labels", RESTING, PATH, OWN_TASKS)
    }
    return document_of(
        documents.Device,
        session,
        name=session.device,
        state=state_of(session, now),
        coordinator=session.device == coordinator and session.state == OPEN,
        session=session.id,
        can=sorted(session.can),
        load=session.expression_names()["load"],
        rank=rank,
        battery=battery if is_number else None,
        labels=plain_json(labels) if isinstance(labels, Mapping) else {},
        heartbeat_timeout=session.timeout,
        last_heartbeat_at=session.beat_at,
        profile=plain_json(profile),
    )


async def list_devices(system: LocalSystem, request: NoFields) -> documents.Page[documents.Device]:
    return documents.Page(items=await device_documents(system.fleet), now=system.fleet.store.clock())


async def show_device(system: LocalSystem, request: declared.OneDevice) -> documents.DeviceDetails:
    fleet, name = system.fleet, request.device
    device = next((device for device in await device_documents(fleet) if device.name == name), None)
    if device is None:
        raise UnknownDevice(f"no device {name!r} has joined")
    latest = await fleet.store.find(Query(device=name, newest=True, limit=LATEST_RUNS))
    held = await fleet.store.find(Query(session=device.session, limit=LATEST_RUNS * 10))
    return document_of(
        documents.DeviceDetails,
        device,
        holds=await run_documents(fleet, [run for run in held if run.status in OWNED]),
        latest=await run_documents(fleet, latest),
        now=fleet.store.clock(),
    )


async def drain_device(system: LocalSystem, request: declared.ChangeDevice) -> documents.Device:
    fleet = system.fleet
    session = await fleet.drain(request.device)
    await system.leave_reason(f"asked device {session.device} to leave", request.reason, session.device)
    ranks = (await fleet.placer(fresh=True)).ranks
    return device_document(session, fleet.store.clock(), ranks, await fleet.coordinator())


# -- scores ------------------------------------------------------------------------------------------------------------


async def invite_device(system: LocalSystem, request: declared.InviteDevice) -> documents.DeviceInvitation:
    from asterism.gateway import enrolment

    fleet = system.fleet
    code = await enrolment.invite(fleet.store, name=request.name, can=request.can or None)
    await system.leave_reason(f"invited device {request.name!r}", request.reason)
    can = sorted(request.can) or None
    return documents.DeviceInvitation(code=code, name=request.name, can=can, seconds=enrolment.CODE_TIME)


async def revoke_device(system: LocalSystem, request: declared.ChangeDevice) -> documents.RevokedDevice:
    from asterism.gateway import enrolment

    fleet = system.fleet
    revoked = await enrolment.revoke(fleet.store, request.device)
    await system.leave_reason(f"revoked device {revoked.name!r}", request.reason, revoked.name)
    revoked_at = revoked.revoked_at or fleet.store.clock()
    return documents.RevokedDevice(name=revoked.name, enrolled_at=revoked.enrolled_at, revoked_at=revoked_at)


async def score_devices(system: LocalSystem, request: declared.ScoreDevices) -> documents.DeviceScores:
    fleet = system.fleet
    run = await _run_or_workflow(fleet, request.subject)
    sample = run or new_run(fleet, await fleet.workflows.find(request.subject), {})
    return document_of(
        documents.DeviceScores,
        sample.work,
        workflow=sample.workflow,
        version=sample.version,
        run=None if run is None else run.id,
        devices=await device_scores(fleet, sample),
        assignment=None if run is None else dict(run.scores),
        assigned_to=None if run is None else run.device,
        epoch=None if run is None else run.epoch,
    )


async def _run_or_workflow(fleet: Fleet, subject: str) -> Run | None:
    """The run that the text names; None if it names a workflow. Raises AmbiguousRun if it names neither."""
    try:
        await fleet.workflows.find(subject)
    except UnknownWorkflow:
        try:
            return await find_run(fleet, subject)
        except AmbiguousRun as error:
            raise type(error)(f"there is no workflow {subject!r}, and {error}") from None
    return None


async def device_scores(fleet: Fleet, run: Run) -> list[documents.DeviceScore]:
    """The devices for a run: candidates first, the best at the top."""
    placer = await fleet.placer(fresh=True)
    choice = placer.choose(run)
    chosen = choice.owner.device if choice.owner is not None else None
    scores = []
    for session in [session for session in placer.sessions.values() if not session.only_runs_plan]:
        refusal = choice.refused.get(session.device)
        parts = placer.score_parts(session, run.work) if refusal is None else None
        why = refusal or ("no free slot" if session.device in choice.busy else None)
        scores.append(_score(session.device, parts, why, session.device == chosen))
    for session in await fleet.store.sessions():
        quiet = session.device not in placer.sessions and not session.only_runs_plan
        if session.state in REACHABLE_STATES and quiet:
            why = f"no heartbeat for {format_age(placer.now - session.beat_at)}"
            scores.append(_score(session.device, None, why, chosen=False))
    return sorted(scores, key=lambda score: (score.score is None, -(score.score or 0.0), score.device))


def _score(device: str, parts: Mapping[str, float] | None, why: str | None, chosen: bool) -> documents.DeviceScore:
    return documents.DeviceScore(
        device=device,
        score=None if parts is None else round(sum(parts.values()), 2),
        parts=None if parts is None else {name: round(part, 2) for name, part in parts.items()},
        candidate=parts is not None,
        chosen=chosen,
        why=why,
    )


# -- the audit log -----------------------------------------------------------------------------------------------------


async def list_audit(system: LocalSystem, request: declared.ListAudit) -> documents.Page[documents.AuditEntry]:
    if request.after is not None and not is_place(request.after):
        raise RequestRefused(422, f"{request.after!r} is not the 'next' of a page of the audit log")
    fleet = system.fleet
    names = ("by", "operation", "target", "outcome", "since", "until")
    wanted = AuditFilter(**{name: getattr(request, name) for name in names})
    keep = (await fleet.settings()).keep_audit
    items: list[documents.AuditEntry] = []
    async with contextlib.aclosing(system.audit_log.entries(wanted, keep, request.after)) as entries:
        async for kept in entries:
            if len(items) == request.limit:
                return documents.Page(items=items, next=items[-1].id, now=fleet.store.clock())
            items.append(document_of(documents.AuditEntry, kept.entry, id=kept.id))
    return documents.Page(items=items, now=fleet.store.clock())


# -- tokens of a store -------------------------------------------------------------------------------------------------


def _token(credential: Credential, now: float) -> documents.Token:
    return document_of(documents.Token, credential, scopes=sorted(credential.scopes), state=credential.state(now))


async def list_tokens(system: LocalSystem, request: NoFields) -> documents.Page[documents.Token]:
    store = system.fleet.store
    now = store.clock()
    items = [_token(credential, now) for credential in await Credentials(store).all()]
    return documents.Page(items=items, now=now)


async def create_token(system: LocalSystem, request: declared.CreateToken) -> documents.CreatedToken:
    fleet = system.fleet
    new = await Credentials(fleet.store).create(request.name, request.scopes, by=fleet.by, valid_for=request.valid)
    await system.leave_reason(f"created token {new.credential.id} for {new.credential.name}", request.reason)
    return document_of(documents.CreatedToken, _token(new.credential, fleet.store.clock()), token=new.token)


async def revoke_token(system: LocalSystem, request: declared.RevokeToken) -> documents.Token:
    fleet = system.fleet
    revoked = await Credentials(fleet.store).revoke(request.token)
    await system.leave_reason(f"revoked token {revoked.id} of {revoked.name}", request.reason)
    return _token(revoked, fleet.store.clock())


async def create_login(system: LocalSystem, request: declared.CreateLogin) -> documents.LoginCode:
    fleet = system.fleet
    name = request.name or fleet.by
    code = await Credentials(fleet.store).create_login(name, request.scopes, by=fleet.by)
    await system.leave_reason(f"created a login for {name}", request.reason)
    return documents.LoginCode(code=code, expires_at=fleet.store.clock() + CODE_LIFETIME)
