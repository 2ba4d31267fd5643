"""Actions behind ``asterism runs``: create a run, wait for its end, describe outcomes, explain why a run waits.

The input of a run is checked before anything is written, with ``--file`` even before a store is created.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from asterism.base import task_inputs
from asterism.base.durations import format_age, format_delay
from asterism.base.text import clean
from asterism.cli.cli_context import find_workflow, note, print_json, short
from asterism.core.plan.task import AGENT_NEEDS
from asterism.core.run.run import ASSIGNED, CLAIMED, COMPLETED, OWNED, Run
from asterism.core.run.run_label import TextTemplate, tidy_label
from asterism.core.run.workflow import Workflow
from asterism.fleet.fleet import Fleet
from asterism.fleet.fleet_json import run_in, took

if TYPE_CHECKING:
    from rich.text import Text

    from asterism.fleet.run_explanation import RunExplanation

FAILED = 1
"""The exit code if a run failed."""


async def create_run(
    fleet: Fleet,
    *,
    wanted: str | Workflow,
    given: Mapping[str, Any],
    terms: Mapping[str, Any],
    wait: bool,
    as_json: bool,
) -> int:
    """Create a run of a workflow, or of the workflow with this name in the store. Returns the exit code.

    Prints its id, and its status to standard error; with ``as_json`` only the run as JSON. With ``wait`` waits for its
    end."""
    flow = wanted if isinstance(wanted, Workflow) else await find_workflow(fleet, wanted)
    _check_input(flow, given)
    options = {name: value for name, value in terms.items() if value is not None}
    near = await _own_devices(fleet) if options.pop("prefer_local", False) else frozenset()
    run = await fleet.create(flow, given, near=near, **options)
    if not as_json:
        click.echo(run.id)
        await _print_status(fleet, run, near)
        if not run.ended and not wait:
            note(f"Follow it with: asterism runs watch, or: asterism runs why {short(run.id)}")
    if wait:
        [run] = await wait_for_ends(fleet, [run], quiet=as_json)
    if as_json:
        print_json(await run_in(fleet, run))
    return exit_code([run]) if wait else 0


async def _own_devices(fleet: Fleet) -> frozenset[str]:
    """The user's devices on this machine that have joined this store."""
    found = await fleet.store.register("store/id")
    if found is None:  # no device has ever joined
        return frozenset()
    from asterism.fleet.device.membership import devices_here

    return devices_here(str(found.value["id"]), await fleet.store.sessions())


def read_workflow(path: str, name: str | None, given: Mapping[str, Any]) -> Workflow:
    """The workflow in a file, by its name if the file has several. Raises ClickException if the input lacks a value."""
    flow = find_workflow_in(path, name)
    _check_input(flow, given)
    return flow


def label_from(template: str | None, given: Mapping[str, Any]) -> str | None:
    """The label that a template makes of an input. Raises AsterismError for one that names an unknown field."""
    return None if template is None else tidy_label(TextTemplate(template).fill(given))


def _check_input(flow: Workflow, given: Mapping[str, Any]) -> None:
    """Raise ClickException if the command or the URL of a workflow names inputs that are not given."""
    texts = flow.argv or ((str(flow.http["url"]),) if flow.http is not None else ())
    if not texts:
        return
    inputs = _RecordingInputs(given)
    for text in texts:
        task_inputs.fill_template(text, inputs)
    if inputs.missing:
        missing = sorted(inputs.missing)
        example = ", ".join(f'"{name}": …' for name in missing)
        raise click.ClickException(f"workflow {flow.name!r} needs {_listed(missing)}: give --input '{{{example}}}'")


def find_workflow_in(path: str, name: str | None) -> Workflow:
    from asterism.planfile.workflow_file import load_workflows  # pydantic takes long to import

    flows = load_workflows(path)
    if name is None:
        if len(flows) > 1:
            raise click.UsageError(
                f"{path} has several workflows; name one of them: {_listed([f.name for f in flows])}."
            )
        return flows[0]
    found = next((flow for flow in flows if flow.name == name), None)
    if found is None:
        raise click.UsageError(f"{path} has no workflow {name!r}; it has {_listed([flow.name for flow in flows])}.")
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


class _RecordingInputs(dict[str, Any]):
    """Inputs that contain every name, and record the names that were not given."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.missing: set[str] = set()

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self.missing.add(str(name))
        return True

    def __missing__(self, name: str) -> str:
        return ""


async def _print_status(fleet: Fleet, run: Run, near: frozenset[str]) -> None:
    """Print which device has the run, or what holds it."""
    if run.ended:
        note(f"A run with the key {run.key!r} exists: it is {run.reported_status}.")
    elif run.status in OWNED:
        score = run.scores.get(str(run.device))
        how = {ASSIGNED: "assigned to", CLAIMED: "claimed by"}.get(run.status, "running on")
        here = ", on this machine" if run.device in near else ""
        note(f"It is {how} {run.device}{f', score {score:.1f}' if score is not None else ''}{here}.")
    else:
        from asterism.fleet.run_explanation import explain_run

        answer = await explain_run(fleet, run.id)
        note(f"It waits: {'; '.join(reason.text for reason in answer.reasons)}.")
        for hint in await hints(fleet, run, answer):
            note(hint)


async def wait_for_ends(fleet: Fleet, runs: Sequence[Run], *, quiet: bool) -> list[Run]:
    """Wait until all runs have ended, and return them in their order. Unless ``quiet``, prints a sentence about each
    end when it happens."""
    import asyncio

    waiting = [asyncio.create_task(fleet.wait(run.id)) for run in runs]
    try:
        for one in asyncio.as_completed(waiting):
            run = await one
            if not quiet:
                click.echo(describe_end(run))
        return [task.result() for task in waiting]
    finally:
        for task in waiting:
            task.cancel()


def exit_code(ended: Sequence[Run]) -> int:
    """1 if one of the runs failed or was cancelled."""
    return FAILED if any(run.error is not None for run in ended) else 0


def describe_end(run: Run) -> str:
    """How a run ended, in a sentence."""
    lasted = took(run)
    after = f" after {format_age(lasted)}" if lasted is not None else ""
    on = f" on {run.device}" if run.device is not None else ""
    name = short(run.id) if run.label is None else f"{short(run.id)} ({run.label})"
    if run.status is COMPLETED:
        return clean(f"{name} completed{on}{after}")
    if run.cancelled:
        error = (run.error or "").removesuffix(" (cancel)")  # a remark of the device that stopped it
        return clean(f"{name} {error}")
    return clean(f"{name} failed{on}{after}: {run.error}")


def describe_outcome(before: Run, after: Run) -> str:
    """The outcome of a request about a run, in a sentence."""
    name = short(after.id)
    if after.id != before.id:
        return f"{after.id} is a retry of {short(before.id)}: {after.reported_status}"
    if after is before or after.revision == before.revision:
        return f"{name} is unchanged: {after.reported_status}"
    if after.ended:
        return clean(f"{name} {after.error or after.status}")
    if after.status is ASSIGNED and after.epoch != before.epoch:
        return clean(f"{name} is assigned to {after.device}")
    if after.paused is not None:
        return clean(f"{name} is paused {after.paused}")
    if after.stop_request is not None:
        return clean(f"{name}: {after.device} was asked to {after.stop_request} it")
    return clean(f"{name}{_resumed(after)}")


def _resumed(run: Run) -> str:
    """The outcome of resuming a run.

    It is not known here whether its device has begun to stop for the pause; if so, the device hands the run back and
    it is offered again."""
    if run.status in OWNED:
        return f" is resumed: {run.device} continues it, or hands it back to be offered again if it was stopping"
    if run.held:
        return f" is resumed; it waits for its turn in series {run.series}"
    delay = run.not_before - run.story[-1].at
    soon = f" {format_delay(delay)}" if delay > 0 else ""
    return f" is resumed and offered{soon} to {run.pinned if run.pinned is not None else 'any capable device'}"


async def hints(fleet: Fleet, run: Run, why: RunExplanation) -> list[str]:
    """A sentence with a command for each reason that has one."""
    kinds = {reason.kind for reason in why.reasons}
    lines = []
    if "pause" in kinds:
        lines.append(f"Resume it with: asterism runs resume {short(run.id)}")
    for name in [reason.name for reason in why.reasons if reason.kind == "suspended"]:
        lines.append(f"Look for the fault on {name}: it tries a run from time to time, and recovers when one succeeds.")
    lines += [
        f"Run it here, with the other runs of the peer: asterism peer remove {shlex.quote(one.name)} --adopt"
        for one in why.reasons
        if one.kind == "removed"
    ]
    there = run.pinned is not None and kinds & {"objection", "suspended"}  # the only device that may run it
    if "no_device" in kinds and not there:
        flow = await fleet.workflows.get(run.workflow, run.version)
        name = shlex.quote(run.pinned) if run.pinned is not None else "NAME"
        can = "".join(f" --can {shlex.quote(need)}" for need in sorted(flow.needs - AGENT_NEEDS))
        can += " --agent COMMAND" if flow.agent is not None else ""
        lines.append(f"On any machine that reaches the store, start a capable device: asterism device join {name}{can}")
        from asterism.peers.registry import PeerRegistry

        called = [peer.name for peer in await PeerRegistry(fleet.store).all() if peer.url is not None]
        if called:
            peer = shlex.quote(called[0]) if len(called) == 1 else "NAME"
            lines.append(f"Or offer it to the devices of a peer: asterism peer sync {peer}")
    if "unwatched" in kinds:
        lines.append("Start a coordinator: asterism monitor, or any device: asterism device join NAME")
    return lines


def explanation_lines(why: RunExplanation, hints: Sequence[str], width: int | None) -> Iterator[Text]:
    """Why a run does not run, and the hints."""
    from rich.text import Text

    from asterism.cli.screen import wrapped

    yield Text(f"Run {why.run_id} is {why.status}:")
    for reason in why.reasons:
        yield from wrapped(reason.text, width, "  ")
    for hint in hints:
        yield from wrapped(hint, width)
