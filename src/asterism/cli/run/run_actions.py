"""Actions behind ``asterism runs``: create a run, and wait for ends.

The input of a run is checked before anything is written, with ``--file`` even before a store is created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import short
from asterism.cli.cli_context import ask_again, note, print_json
from asterism.core.json_values import JsonObject
from asterism.core.run.run_label import TextTemplate, tidy_label
from asterism.core.run.workflow import Workflow

if TYPE_CHECKING:
    from asterism.api.documents import Run
    from asterism.api.system import System

FAILED = 1
"""The exit code if a run failed."""


async def create_run(
    system: System,
    *,
    wanted: str | Workflow,
    run_input: JsonObject,
    options: Mapping[str, Any],
    wait: bool,
    as_json: bool,
) -> int:
    """Create a run of a workflow, or of the workflow with this name in the store. Returns the exit code.

    Prints its id, and its status to standard error; with ``as_json`` only the run as JSON. With ``wait`` waits for its
    end."""
    if isinstance(wanted, Workflow):
        wanted = (await system.add_workflow(wanted.to_json())).name
    chosen = {name: value for name, value in options.items() if value is not None}
    near = await _own_devices(system) if chosen.pop("prefer_local", False) else frozenset()
    run = await system.create_run(wanted, run_input, near=sorted(near), **chosen)
    if not as_json:
        click.echo(run.id)
        await _print_status(system, run, near)
        if not run.ended and not wait:
            note(f"Follow it with: asterism runs watch, or: asterism runs why {short(run.id)}")
    if wait:
        [run] = await wait_for_ends(system, [run], quiet=as_json)
    if as_json:
        print_json(run)
    return exit_code([run]) if wait else 0


async def _own_devices(system: System) -> frozenset[str]:
    """The user's devices on this machine that have joined this store."""
    from asterism.api.system import LocalSystem

    if not isinstance(system, LocalSystem):  # those of a gateway keep no list here
        return frozenset()
    store = system.fleet.store
    register = await store.register("store/id")
    if register is None:  # no device has ever joined
        return frozenset()
    from asterism.fleet.device.membership import devices_here

    return devices_here(str(register.value["id"]), await store.sessions())


def read_workflow(path: str, name: str | None, run_input: Mapping[str, Any]) -> Workflow:
    """The workflow in a file, by its name if the file has several. Raises MissingInput if the input lacks a value."""
    from asterism.fleet.workflows import check_input

    flow = find_workflow_in(path, name)
    check_input(flow, run_input)
    return flow


def label_from(template: str | None, run_input: Mapping[str, Any]) -> str | None:
    """The label that a template makes of an input. Raises AsterismError for one that names an unknown field."""
    return None if template is None else tidy_label(TextTemplate(template).fill(run_input))


def find_workflow_in(path: str, name: str | None) -> Workflow:
    from asterism.planfile.workflow_file import load_workflows  # pydantic takes long to import

    flows = load_workflows(path)
    if name is None:
        if len(flows) > 1:
            raise click.UsageError(
                f"{path} has several workflows; name one of them: {_listed([f.name for f in flows])}."
            )
        return flows[0]
    workflow = next((flow for flow in flows if flow.name == name), None)
    if workflow is None:
        raise click.UsageError(f"{path} has no workflow {name!r}; it has {_listed([flow.name for flow in flows])}.")
    return workflow


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


async def _print_status(system: System, run: Run, near: frozenset[str]) -> None:
    """Print which device has the run, or what holds it."""
    if run.ended:
        note(f"A run with the key {run.key!r} exists: it is {run.status}.")
    elif run.device is not None:
        score = run.scores.get(run.device)
        how = {"assigned": "assigned to", "claimed": "claimed by"}.get(run.status, "running on")
        here = ", on this machine" if run.device in near else ""
        note(f"It is {how} {run.device}{f', score {score:.1f}' if score is not None else ''}{here}.")
    else:
        answer = await system.explain_run(run.id)
        note(f"It waits: {'; '.join(reason.text for reason in answer.reasons)}.")
        for line in answer.advice:
            note(line)


async def wait_for_ends(system: System, runs: Sequence[Run], *, quiet: bool) -> list[Run]:
    """Wait until all runs have ended, and return them in their order. Unless ``quiet``, prints a sentence about each
    end when it happens."""
    import asyncio

    from asterism.cli.run.run_views import describe_end

    waiting = [asyncio.create_task(_end_of(system, run)) for run in runs]
    try:
        for end in asyncio.as_completed(waiting):
            run = await end
            if not quiet:
                click.echo(describe_end(run))
        return [task.result() for task in waiting]
    finally:
        for task in waiting:
            task.cancel()


async def _end_of(system: System, run: Run) -> Run:
    while not run.ended:
        run = await ask_again(partial(system.wait_run, run.id))
    return run


def exit_code(ended: Sequence[Run]) -> int:
    """1 if one of the runs failed or was cancelled."""
    return FAILED if any(run.error is not None for run in ended) else 0
