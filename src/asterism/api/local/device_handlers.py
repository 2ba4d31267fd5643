"""Devices of a store: their documents and scores, and what the operations of ``api/device_operations`` do."""

from __future__ import annotations

from collections.abc import Mapping

from asterism.api import device_operations as declared
from asterism.api import documents
from asterism.api.documents import document_of
from asterism.api.local.reasons import leave_reason
from asterism.api.local.run_handlers import run_documents
from asterism.api.system import LocalSystem
from asterism.base.durations import format_age
from asterism.core.json_values import plain_json
from asterism.core.run import transitions
from asterism.core.run.run import OWNED, Run
from asterism.core.run.session import OPEN, REACHABLE_STATES, RESTING, Session
from asterism.core.run.workflow import Workflow
from asterism.fleet.fleet import Fleet, UnknownDevice
from asterism.fleet.joinable_devices import state_of
from asterism.fleet.run_queries import AmbiguousRun, find_run
from asterism.fleet.workflows import UnknownWorkflow
from asterism.gateway import enrolment
from asterism.store.protocol import Query

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
    profile = {name: value for name, value in session.profile.items() if name not in ("labels", RESTING)}
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


async def list_devices(system: LocalSystem, request: declared.ListDevices) -> documents.Page[documents.Device]:
    return documents.Page(items=await device_documents(system.fleet), now=system.fleet.store.clock())


async def show_device(system: LocalSystem, request: declared.OneDevice) -> documents.DeviceDetails:
    fleet, name = system.fleet, request.device
    device = next((device for device in await device_documents(fleet) if device.name == name), None)
    if device is None:
        raise UnknownDevice(f"no device {name!r} has joined")
    latest = await fleet.store.find(Query(device=name, newest=True, limit=LATEST_RUNS))
    held = await fleet.store.find(Query(session=device.session, limit=LATEST_RUNS * 10))
    return documents.DeviceDetails(
        **vars(device),
        holds=await run_documents(fleet, [run for run in held if run.status in OWNED]),
        latest=await run_documents(fleet, latest),
        now=fleet.store.clock(),
    )


async def drain_device(system: LocalSystem, request: declared.ChangeDevice) -> documents.Device:
    fleet = system.fleet
    session = await fleet.drain(request.device)
    await leave_reason(fleet, f"asked device {session.device} to leave", request.reason, session.device)
    ranks = (await fleet.placer(fresh=True)).ranks
    return device_document(session, fleet.store.clock(), ranks, await fleet.coordinator())


# -- scores ------------------------------------------------------------------------------------------------------------


async def invite_device(system: LocalSystem, request: declared.InviteDevice) -> documents.DeviceInvitation:
    fleet = system.fleet
    code = await enrolment.invite(fleet.store, name=request.name, can=request.can or None)
    await leave_reason(fleet, f"invited device {request.name!r}", request.reason)
    can = sorted(request.can) or None
    return documents.DeviceInvitation(code=code, name=request.name, can=can, seconds=enrolment.CODE_TIME)


async def revoke_device(system: LocalSystem, request: declared.ChangeDevice) -> documents.RevokedDevice:
    fleet = system.fleet
    revoked = await enrolment.revoke(fleet.store, request.device)
    await leave_reason(fleet, f"revoked device {revoked.name!r}", request.reason, revoked.name)
    revoked_at = revoked.revoked_at or fleet.store.clock()
    return documents.RevokedDevice(name=revoked.name, enrolled_at=revoked.enrolled_at, revoked_at=revoked_at)


async def score_devices(system: LocalSystem, request: declared.ScoreDevices) -> documents.DeviceScores:
    fleet = system.fleet
    run = await _run_or_workflow(fleet, request.subject)
    flow = await (fleet.workflows.get(run.workflow, run.version) if run else fleet.workflows.find(request.subject))
    return document_of(
        documents.DeviceScores,
        flow,
        workflow=flow.name,
        run=None if run is None else run.id,
        devices=await device_scores(fleet, flow, run),
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


async def device_scores(fleet: Fleet, workflow: Workflow, run: Run | None = None) -> list[documents.DeviceScore]:
    """The devices for a run, or for a new run of the workflow: candidates first, the best at the top."""
    sample = run or transitions.create("sample", workflow, {}, by=fleet.by, now=fleet.store.clock())
    placer = await fleet.placer(fresh=True)
    choice = placer.choose(sample, workflow)
    chosen = choice.owner.device if choice.owner is not None else None
    scores = []
    for session in placer.sessions.values():
        refusal = choice.refused.get(session.device)
        parts = placer.score_parts(session, workflow) if refusal is None else None
        why = refusal or ("no free slot" if session.device in choice.busy else None)
        scores.append(_score(session.device, parts, why, session.device == chosen))
    for session in await fleet.store.sessions():
        if session.state in REACHABLE_STATES and session.device not in placer.sessions:
            quiet = f"no heartbeat for {format_age(placer.now - session.beat_at)}"
            scores.append(_score(session.device, None, quiet, chosen=False))
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
