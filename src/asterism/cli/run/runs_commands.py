"""``asterism runs``: create, list, watch, cancel and retry runs; ``asterism batch``: runs with a common name."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from asterism.api.documents import read_pages
from asterism.api.run_operations import MOST_AT_ONCE, STATUSES, WAITS
from asterism.base.text import echo_data, json_text, plural, short
from asterism.cli.cli_context import (
    Answer,
    CommandGroup,
    ask_again,
    fleet_options,
    listed,
    log_options,
    note,
    on_system,
    print_json,
    reason_option,
    refuse_options,
    view,
    with_system,
)
from asterism.cli.csv_table import csv_text
from asterism.cli.option_types import Function, duration, number_option, object_option, option
from asterism.core.json_values import JsonObject
from asterism.core.run.run_label import TextTemplate, tidy_label
from asterism.core.run.work import KEEP_RULES, Workflow

if TYPE_CHECKING:
    from asterism.api.documents import BatchResult, BulkOutcome, Page, Run
    from asterism.api.system import System

FAILED, REFUSED = 1, 64
"""Exit codes: a run failed or was cancelled; what was asked for was refused."""

TOLD_EVERY = 5.0
"""Seconds between two lines about a batch that somebody waits for."""


@click.group(cls=CommandGroup)
def runs() -> None:
    """Create and manage runs: create, list, show, why, watch and more.

    RUN is the id of a run, or any part of the id that no other run shares (at least 4 letters)."""


@runs.command()
@object_option("The input as a JSON object, in a file, or on standard input.")
@option("--file FILE.YAML", "Take the workflow from this file and add it to the store.")
@option("--key TEXT", "Idempotency key: a second run with this key is not created; the first is returned.")
@option("--series NAME", "Queue the run in a series; a series has at most one active run.")
@number_option("--priority", help="Higher goes first; default: the priority of the workflow.")
@option("--device NAME", "Run it on this device only.")
@option(
    "--keep",
    "Which result counts if peers that were apart both ran it; default: that of the workflow.",
    type=click.Choice(KEEP_RULES),
)
@option(
    "--prefer-local/--no-prefer-local",
    "Prefer your device on this machine, if it can execute the run now.",
    default=True,
)
@option("--batch NAME", "The runs to which it belongs; follow them with `asterism batch`.")
@option("--wait", "Wait for the end of the run; exit with 1 if it failed.")
@option("--label TEXT", "What to call the run; {name} stands for an input.")
@option("--each FILE|-", "Create a run for each line: a JSON object, the input. --key and --label may contain {name}.")
@option("--as NAME", "With --each: lines are plain text, the value of this input.", to="plain")
@fleet_options
def create(
    workflow: str | None,
    run_input: JsonObject | None,
    file: str | None,
    wait: bool,
    label: str | None,
    each: str | None,
    plain: str | None,
    store: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Create a run of a workflow and print its id.

    \b
    asterism runs create transcode --input '{"file": "a.mp4", "out": "a.webm"}'
    asterism runs create report --input @numbers.json --wait
    asterism runs create transcode --each files.jsonl --label '{file}' --key '{file}'
    ls *.mp4 | asterism runs create transcode --each - --as file

    With --each it creates up to 1,000 runs in one commit, and prints their ids unless standard output is a terminal.
    After an interruption, a command with --key can be repeated: it creates only the runs that are missing."""
    if workflow is None and file is None:
        raise click.UsageError("Give the name of a WORKFLOW, or --file.")
    if each is not None:
        if wait:
            all_of_them = "asterism runs watch --until-done"
            if options["batch"] is not None:
                all_of_them = f"asterism batch wait {shlex.quote(options['batch'])}"
            raise click.UsageError(f"--wait waits for one run. Wait for all with: {all_of_them}")
        refuse_options("has no effect with --each: the runs are offered to all devices.", "prefer_local")
        from asterism.cli.run.bulk_runs import NewRuns, create_each

        bulk_options = {
            name: options[name]
            for name in ("series", "priority", "device", "keep", "batch")
            if options[name] is not None
        }
        new = NewRuns(
            workflow=find_workflow_in(file, workflow) if file is not None else workflow or "",
            source=each,
            plain=plain,
            values=run_input or {},
            label=label,
            key=options["key"],
            options=bulk_options,
            as_json=as_json,
        )
        return with_system(store, partial(create_each, new=new), create=file is not None)
    if plain is not None:
        raise click.UsageError("--as belongs to --each.")

    options["label"] = None if label is None else tidy_label(TextTemplate(label).fill(run_input or {}))
    wanted = read_workflow(file, workflow, run_input or {}) if file is not None else workflow or ""
    make = partial(create_run, wanted=wanted, run_input=run_input or {}, options=options, wait=wait, as_json=as_json)
    return with_system(store, make, create=file is not None)


@runs.command()
@option(
    "--status",
    "Only runs with this status; open means not ended.",
    to="statuses",
    type=click.Choice(STATUSES),
    multiple=True,
)
@option("--workflow NAME", "Only runs of this workflow.")
@option("--device NAME", "Only runs on this device.")
@option("--series NAME", "Only runs of this series.")
@option("--batch NAME", "Only runs of this batch, without those that were retried.")
@option("--search TEXT", "Only runs with this text in their label, key or input.")
@option("--waiting", "Only open runs that wait for this.", type=click.Choice(WAITS))
@number_option("--limit", 50, least=0, help="Maximum number of runs; 0 for all.")
@option("--newest", "List the newest first instead of last.")
async def list_(
    system: System, statuses: tuple[str, ...], limit: int, newest: bool, as_json: bool, **wanted: Any
) -> None:
    """List the latest runs.

    LABEL is the label of the run; without one, the task of its plan or the values of its input.
    FOR is how long a run has had its status; for a run that has ended it is how long the work took. BEAT is the age of
    the last heartbeat of its device."""
    wanted["status"] = ",".join(statuses) or None
    page = await read_pages(system.list_runs, limit, MOST_AT_ONCE, **wanted)
    if not newest:
        page.items.reverse()
    _runs_answer(page, any(wanted.values())).print(as_json)
    if page.next is not None:
        note(f"These are the newest {plural(len(page.items), 'run')}; list all with: --limit 0")


def _runs_answer(page: Page[Run], filtered: bool) -> Answer:
    create, notes = "There are no runs. Create one with: asterism runs create WORKFLOW", []
    for peer in sorted({run.held_for for run in page.items if run.held_for is not None}):
        held = ", ".join(short(run.id) for run in page.items if run.held_for == peer)
        command = f"asterism peer remove {peer} --adopt"
        notes.append(f"Held because peer {peer} was removed: {held}. Run them here with: {command}")
    return listed(page, "run.run_views:RUN_TABLE", "No run matches." if filtered else create, notes)


@runs.command(short_help="Show everything about a run.")
async def show(system: System, run: str) -> Answer:
    """Show everything about a run: its status, progress, story and assignments."""
    details = await system.show_run(run)
    return Answer(details, view("run.run_views:details_lines", details))


@runs.command()
async def why(system: System, run: str) -> Answer:
    """Explain why a run is not running.

    The answer names what holds the run: another run of its series, a pause, the delay before its next attempt, or the
    devices: none is capable, or they are busy, resting, silent or about to answer."""
    answer = await system.explain_run(run)
    return Answer(answer, view("run.run_views:explanation_lines", answer))


@runs.command()
@option("--until-done", "Exit when every run has ended.")
async def watch(system: System, until_done: bool, as_json: bool) -> None:
    """Watch all runs: their devices, status and progress. Ctrl-C stops it.

    Without a terminal, prints a line for each event of a run; with --json a JSON object for each."""
    from asterism.cli.run.runs_watch import watch as watch_fleet
    from asterism.cli.screen import Screen

    await watch_fleet(system, Screen(), until_done=until_done, as_json=as_json)


@runs.command()
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
async def wait(system: System, names: tuple[str, ...], as_json: bool) -> Answer:
    """Wait until runs have ended. Exits with 1 if one of them failed."""

    runs = [await system.show_run(name) for name in names]
    ended = await wait_for_ends(system, list({run.id: run for run in runs}.values()), quiet=as_json)
    return Answer(ended, code=exit_code(ended))


@runs.command(short_help="Print the output of a completed run.")
async def output(system: System, run: str, as_json: bool) -> int:
    """Print the output of a completed run: text as it is, anything else as JSON.

    Exits with 1 if the run failed, with 64 if it has not ended."""
    details = await system.show_run(run)
    if not details.ended:
        note(
            f"Run {details.id} is {details.status} and has no output yet. "
            f"Show its progress with: asterism runs show {short(details.id)}"
        )
        return REFUSED
    if details.error is not None:
        note(f"Run {details.id} {'was ' if details.cancelled else 'failed: '}{details.error}")
        return FAILED
    value = (await system.read_output(details.id)).output
    if as_json or not isinstance(value, str):
        print_json(value)
    else:
        echo_data(value)
    return 0


# -- requests ----------------------------------------------------------------------------------------------------------

Request = Callable[["System", str], Awaitable["Run"]]

_request_options = reason_option("for the story of the runs")


def _request(meaning: str, short: str | None = None) -> Callable[[Function], click.Command]:
    """A command that makes the same request for each run that it is given."""

    def decorate(function: Function) -> click.Command:
        command = _request_options(on_system()(function))
        arguments = click.argument("names", metavar="RUN...", nargs=-1, required=True)(command)
        return runs.command(help=meaning, short_help=short)(arguments)

    return decorate


async def _request_each(system: System, names: tuple[str, ...], as_json: bool, request: Request) -> int:
    from asterism.api.client_errors import TryLater
    from asterism.cli.run.run_views import describe_outcome
    from asterism.core.errors import AsterismError, RunRefused
    from asterism.store.store_errors import StoreError

    changed, refused = [], 0
    before = {run.id: run for run in [await system.show_run(name) for name in names]}
    for run in before.values():
        try:
            after = await request(system, run.id)
        except (StoreError, TryLater):
            raise
        except AsterismError as error:  # continue with the others
            note(f"Run {error.run_id}: {error.why}." if isinstance(error, RunRefused) else _sentence(error))
            refused += 1
            continue
        changed.append(after)
        if not as_json:
            click.echo(describe_outcome(run, after))
    return Answer(changed, code=REFUSED if refused else 0).print(as_json)


def _sentence(error: Exception) -> str:
    """The message as a sentence. A command at its end stays as it is to be typed."""
    text = str(error)
    return text if ": asterism " in text else f"{text[:1].upper()}{text[1:]}."


@_request("Cancel runs: at once, or when their devices have stopped them.")
async def cancel(system: System, names: tuple[str, ...], reason: str, as_json: bool) -> int:
    return await _request_each(system, names, as_json, lambda system, run: system.cancel_run(run, reason))


@_request("Pause runs until they are resumed. Their progress is kept.", "Pause runs until they are resumed.")
async def pause(system: System, names: tuple[str, ...], reason: str, as_json: bool) -> int:
    return await _request_each(system, names, as_json, lambda system, run: system.pause_run(run, reason))


@_request("Resume paused runs. A device that has not yet stopped a run for the pause continues it.")
async def resume(system: System, names: tuple[str, ...], reason: str, as_json: bool) -> int:
    return await _request_each(system, names, as_json, lambda system, run: system.resume_run(run, reason))


@_request(
    "Run ended runs again: create new runs with the same input and print their ids.",
    "Run ended runs again, as new runs.",
)
async def retry(system: System, names: tuple[str, ...], reason: str, as_json: bool) -> int:
    return await _request_each(system, names, as_json, lambda system, run: system.retry_run(run, reason))


@runs.command(short_help="Assign runs to another device.")
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@option("--to DEVICE", "The device that gets the runs.", to="device", required=True)
@option("--stop", "If a device works on a run, stop it there first; its progress is kept.")
@_request_options
async def move(system: System, names: tuple[str, ...], device: str, stop: bool, reason: str, as_json: bool) -> int:
    """Assign runs to another device: runs that wait, or that no device has started.

    A run on which a device works is refused; with --stop, that device is asked to hand it back first. If the new device
    declines the run, any device may take it again; use `runs create --device` to allow only one device."""
    return await _request_each(system, names, as_json, lambda system, run: system.move_run(run, device, stop, reason))


@runs.command()
@option("--older-than DURATION", "The minimum age since the end, such as 30d.", type=duration, required=True)
async def prune(system: System, older_than: float) -> Answer:
    """Delete runs that ended long ago.

    The fleet also does this by itself: `asterism fleet set --keep` sets how long it keeps ended runs."""
    pruned = await system.prune_runs(older_than)
    return Answer(pruned, f"{plural(pruned.pruned, 'run')} deleted.")


@runs.command(short_help="Print what a run has printed.")
@log_options
@on_system()
def logs(run: str, as_json: bool, **chosen: Any) -> Any:
    """Print what a run has printed: the output of its command, or what its function prints and logs.

    The output of all attempts is kept, each up to the --log-limit of the fleet: its beginning and its end. With --json
    each line is a JSON object with its attempt, time and stream. The result of a run is printed by `asterism runs
    output`."""
    from asterism.cli.log_output import print_run_log, read_log_options

    return partial(print_run_log, run=run, options=read_log_options(as_json, chosen))


# -- creating and waiting ----------------------------------------------------------------------------------------------


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


def find_workflow_in(path: str, name: str | None) -> Workflow:
    from asterism.planfile.workflow_file import load_workflows

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


# -- asterism batch ----------------------------------------------------------------------------------------------------


RESULT_COLUMNS = ("id", "label", "key", "status", "device", "attempts", "took", "ended_at", "input", "output", "error")
_story_reason = reason_option("for the story of the runs")


@click.group(cls=CommandGroup)
def batch() -> None:
    """Manage runs with a common name: show, wait, cancel, retry, results.

    `asterism runs create --batch NAME` creates runs of a batch. A batch exists while one of its runs does. A run that
    was retried is replaced by its retry: it is neither counted nor listed any more."""


@batch.command()
async def list_batches(system: System) -> Answer:
    """List the batches, the newest last."""
    page = await system.list_batches()
    page.items.reverse()
    create = "There are no batches. Create one with: asterism runs create WORKFLOW --each FILE --batch NAME"
    return listed(page, "run.run_views:BATCH_TABLE", create)


@batch.command(short_help="Show how far a batch has come.")
async def show_batch(system: System, name: str) -> Answer:
    """Show how far a batch has come: its counts, its rate, the time left, and the runs that failed.

    The rate is that of the last 100 ends; the time left is what the other runs take at this rate."""
    details = await system.show_batch(name)
    return Answer(details, view("run.run_views:batch_lines", details))


@batch.command(short_help="Wait until all runs of a batch have ended.")
async def wait_batch(system: System, name: str) -> Answer:
    """Wait until all runs of a batch have ended, and print how far it has come. Exits with 1 if one of them failed or
    was cancelled."""
    from asterism.cli.run.run_views import progress_line

    told, details = -1, await ask_again(partial(system.wait_batch, name, TOLD_EVERY))
    while not details.ended:
        if (ended := details.completed + details.failed + details.cancelled) != told:
            note(progress_line(details))
            told = ended
        details = await ask_again(partial(system.wait_batch, name, TOLD_EVERY))
    code = FAILED if details.failed or details.cancelled else 0
    return Answer(details, view("run.run_views:batch_lines", details), code=code)


@batch.command(short_help="Cancel all runs of a batch.")
@_story_reason
async def cancel_batch(system: System, name: str, reason: str) -> Answer:
    """Cancel all runs of a batch: at once, or when their devices have stopped them."""
    return await _act_on_all("cancelled", partial(system.cancel_batch, name, reason=reason))


@batch.command(short_help="Run what failed in a batch again.")
@option("--failed", "Only runs that failed, not those that were cancelled.")
@_story_reason
async def retry_batch(system: System, name: str, failed: bool, reason: str) -> Answer:
    """Run the runs of a batch again that failed or were cancelled, as new runs that replace them."""
    return await _act_on_all("retried", partial(system.retry_batch, name, failed, reason=reason))


async def _act_on_all(what: str, act: Callable[..., Awaitable[BulkOutcome]]) -> Answer:
    """Act on all runs of a batch, some at a time."""
    outcome = await act()
    changed, refused = list(outcome.changed), dict(outcome.refused)
    while outcome.next is not None:
        outcome = await act(after=outcome.next)
        changed += outcome.changed
        refused |= outcome.refused
    notes = [f"Run {short(run)}: {why}." for run, why in refused.items()]
    document = {"changed": changed, "refused": refused}
    return Answer(document, f"{plural(len(changed), 'run')} {what}.", notes, REFUSED if refused else 0)


@batch.command(short_help="Print the results of a batch.")
@option("--csv", "Print a table in CSV instead of JSON lines.", to="as_csv")
async def results(system: System, name: str, as_csv: bool, as_json: bool) -> None:
    """Print a JSON object for each run of a batch that has ended, in the order of their creation.

    In CSV, an input is JSON, and so is an output that is not text. A ' is put before
    a text that a spreadsheet would calculate."""
    if as_csv and as_json:
        raise click.UsageError("Give either --csv or --json.")
    after: str | None = None
    first = True
    while first or after is not None:
        page = await ask_again(partial(system.read_batch_results, name, after, MOST_AT_ONCE))
        if as_csv:
            text = csv_text([*([RESULT_COLUMNS] if first else []), *map(_cells, page.items)])
        else:
            text = "\n".join(json_text(item, encoding=sys.stdout.encoding) for item in page.items)
        if text:
            echo_data(text)
        first, after = False, page.next
    details = await system.show_batch(name)
    if not details.ended:
        note(f"{plural(details.waiting + details.running, 'run')} of the batch have not ended.")


def _cells(result: BatchResult) -> list[Any]:
    texts = {"input": json_text(result.input)}
    if result.output is not None and not isinstance(result.output, str):
        texts["output"] = json_text(result.output)
    return [texts.get(name, getattr(result, name)) for name in RESULT_COLUMNS]
