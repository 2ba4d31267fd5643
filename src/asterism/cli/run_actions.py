"""Creating a run by command: everything that can be known to be wrong is said before anything is written; of a
workflow in a file, before there is a store.

Waiting for runs to end, and saying what became of what was asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import click

from asterism.base import task_inputs
from asterism.base.durations import format_age, format_delay
from asterism.base.text import clean
from asterism.cli.cli_context import find_workflow, note, short
from asterism.cli.fleet_json import took
from asterism.cli.run_hints import hints
from asterism.core.run.run import ASSIGNED, CLAIMED, COMPLETED, OWNED, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.host import devices_here
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_explanation import explain_run


async def create_run(
    fleet: Fleet,
    wanted: str | Workflow,
    given: Mapping[str, Any],
    terms: Mapping[str, Any],
    *,
    quiet: bool,
    waiting: bool,
) -> Run:
    """Create a run of a workflow, or of one in the store by its name; unless ``quiet``, print its id, and what becomes
    of it beside that. ``waiting`` is whether its end will be told, too."""
    flow = wanted if isinstance(wanted, Workflow) else await find_workflow(fleet, wanted)
    _check_input(flow, given)
    wished = {name: value for name, value in terms.items() if value is not None}
    near = await _here(fleet) if wished.pop("prefer_local", False) else frozenset()
    run = await fleet.create(flow, given, near=near, **wished)
    if not quiet:
        click.echo(run.id)
        await _tell(fleet, run, near)
        if not run.ended and not waiting:
            note(f"Follow it with: asterism runs watch, or asterism runs why {short(run.id)}")
    return run


async def _here(fleet: Fleet) -> frozenset[str]:
    """The devices of the store that live on this machine and are ours."""
    found = await fleet.store.register("store/id")
    if found is None:  # no device has ever joined
        return frozenset()
    return devices_here(str(found.value["id"]), await fleet.store.sessions())


def workflow_in(path: str, name: str | None, given: Mapping[str, Any]) -> Workflow:
    """The workflow of a file that is meant, if it can do with the input."""
    flow = _in_file(path, name)
    _check_input(flow, given)
    return flow


def _check_input(flow: Workflow, given: Mapping[str, Any]) -> None:
    lacking = sorted(_lacking(flow, given))
    if lacking:
        named = ", ".join(f'"{one}": …' for one in lacking)
        raise click.ClickException(f"workflow {flow.name!r} asks for {_listed(lacking)}: give --input '{{{named}}}'")


def _in_file(path: str, name: str | None) -> Workflow:
    from asterism.planfile.workflow_file import load_workflows  # pydantic takes long to import

    flows = load_workflows(path)
    if name is None:
        if len(flows) > 1:
            raise click.UsageError(f"{path} has several workflows: name one of {_listed([f.name for f in flows])}.")
        return flows[0]
    found = next((flow for flow in flows if flow.name == name), None)
    if found is None:
        raise click.UsageError(f"{path} has no workflow {name!r}, but {_listed([flow.name for flow in flows])}.")
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


def _lacking(flow: Workflow, given: Mapping[str, Any]) -> Iterator[str]:
    """The names that a command or an address asks for and the input does not have."""
    asked = _Asked(given)
    for text in flow.argv or ((str(flow.http["url"]),) if flow.http is not None else ()):
        task_inputs.fill_template(text, asked)
    yield from asked.missing


class _Asked(dict[str, Any]):
    """Has everything that it is asked for, and remembers what it was not given."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.missing: set[str] = set()

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self.missing.add(str(name))
        return True

    def __missing__(self, name: str) -> str:
        return ""


async def _tell(fleet: Fleet, run: Run, near: frozenset[str]) -> None:
    """What becomes of it now; if nobody has it, what holds it."""
    if run.ended:
        note(f"It is {run.reported_status} already: the key {run.key!r} was used before.")
    elif run.status in OWNED:
        score = run.scores.get(str(run.device))
        how = {ASSIGNED: "assigned to", CLAIMED: "claimed by"}.get(run.status, "running on")
        here = ", on this machine" if run.device in near else ""
        note(f"It is {how} {run.device}{f', score {score:.1f}' if score is not None else ''}{here}.")
    else:
        answer = await explain_run(fleet, run.id)
        note(f"It waits: {'; '.join(reason.text for reason in answer.reasons)}.")
        for hint in await hints(fleet, run, answer):
            note(hint)


async def ends(fleet: Fleet, runs: Sequence[Run]) -> AsyncIterator[tuple[Run, str]]:
    """Each run as it ends, with a sentence about it."""
    waiting = [asyncio.create_task(fleet.wait(run.id)) for run in runs]
    try:
        for one in asyncio.as_completed(waiting):
            run = await one
            yield run, sentence(run)
    finally:
        for task in waiting:
            task.cancel()


def sentence(run: Run) -> str:
    """How a run ended."""
    lasted = took(run)
    after = f" after {format_age(lasted)}" if lasted is not None else ""
    on = f" on {run.device}" if run.device is not None else ""
    if run.status is COMPLETED:
        return clean(f"{short(run.id)} completed{on}{after}")
    cancelled = (run.error or "").partition(":")[0].removesuffix(" (cancel)")
    word = cancelled if run.cancelled else f"failed{on}{after}: {run.error}"
    return clean(f"{short(run.id)} {word}")


def answer(before: Run, after: Run) -> str:
    """What became of what was asked of a run."""
    name = short(after.id)
    if after.id != before.id:
        return f"{after.id} is a retry of {short(before.id)}: {after.reported_status}"
    if after is before or after.revision == before.revision:
        return f"{name} is as it was: {after.reported_status}"
    if after.ended:
        return clean(f"{name} {after.error or after.status}")
    if after.paused is not None:
        return clean(f"{name} is paused {after.paused}")
    if after.wish is not None:
        return clean(f"{name}: {after.device} was asked to {after.wish} it")
    return clean(f"{name}{_resumed(after)}")


def _resumed(run: Run) -> str:
    """What it means that a run is not to pause any more. Whether its owner has heard of the pause is not known here,
    and who has begun to stop does not turn back: it hands the run back, and nothing keeps it any more."""
    if run.status in OWNED:
        return (
            f": the wish to pause it is withdrawn; {run.device} goes on with it, or hands it back to be offered again "
            "if it has begun to stop"
        )
    if run.held:
        return f" is not paused any more; it waits for its turn in series {run.series}"
    delay = run.not_before - run.story[-1].at
    soon = f" {format_delay(delay)}" if delay > 0 else ""
    return f" is offered again{soon}, to {run.pinned if run.pinned is not None else 'any device that can do it'}"
