"""``asterism run``, ``check``, ``show`` and ``schema``: commands on plan files.

With ``--store`` a run is durable: the plan is stored, and another process can resume it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    current_user,
    is_given,
    json_option,
    options,
    print_json,
    refuse_options,
    server_of,
    with_fleet,
    with_system,
)
from asterism.cli.editor_options import MODEL, OUTSIDE, allow_imports, editor_terms, resolve_editor
from asterism.cli.option_types import (
    approval_rule,
    edit_scope,
    option,
    parameter_option,
    record_options,
    size_option,
    tick_text,
)
from asterism.cli.plan.plan_context import (
    NO_EDITOR,
    LocalCommand,
    OutputOptions,
    check_drawing_options,
    concurrency_option,
    draw,
    drawing_options,
    editor_options,
    local_options,
    local_work,
    plain_option,
    report_option,
    result_options,
)
from asterism.core.errors import suggestion
from asterism.core.json_values import JsonObject
from asterism.core.plan.assignment_lock import POLICIES
from asterism.core.plan.plan_name import EACH_START
from asterism.core.plan.plan_options import PlanOptions

if TYPE_CHECKING:
    from asterism.api.system import System
    from asterism.fleet.fleet import Fleet
    from asterism.orchestrator.unchanged_tasks import ResultRecords
    from asterism.planfile import GivenParameters, Mistake, PlanFile

UNUSABLE = 64
"""The exit code if a plan file cannot be used."""

CONDITIONS = {
    "edit_timeout": "With --editor",
    "no_device_timeout": "Without --store it is 0, since none can join; with it",
    "approval_timeout": "With --store",
    "approval_escalation": "With --store",
}
"""When options of a plan have an effect."""

APPROVAL_OPTIONS = ("approval_timeout", "approval_escalation")
STORE_OPTIONS = ("name", "local", "no_local", "takeover_after", "approvals", *APPROVAL_OPTIONS)
"""The options of ``run`` that need ``--store``."""

SUBMITTED_OPTIONS = ("name", "policy", "only", "tick", *PlanOptions.__struct_fields__)
"""The options of ``run`` that are fields of a submission to a server."""

NOT_AT_A_SERVER = ("local", "no_local", "takeover_after", "concurrency", "serve")
"""The options of ``run`` that are refused at a server."""

EDITOR_OPTIONS = ("edit_timeout", "policy", "scopes")
"""The options of ``run`` that need ``--editor``, unless the plan is stored: a later editor goes by them."""

NOBODY_APPROVES = 1.0
"""Seconds after which an edit is refused that waits for a person, in a plan without a store: nobody can approve it."""

plan_argument = click.argument("plan", metavar="PLAN.YAML", type=click.Path())


parameter_options = options(
    parameter_option,
    option("--params FILE", "A YAML or JSON file with values of parameters.", to="params_file"),
    option("--only TASK", "Only this task and what it needs; repeatable.", multiple=True),
)
"""Which plan a plan file becomes."""


class UnusablePlanFile(click.ClickException):
    """A plan file that cannot be used. The message has a line for each mistake, already cleaned."""

    several_lines = True

    def show(self, file: object = None) -> None:
        click.echo(self.message, err=True)


@click.command(cls=LocalCommand)
@plan_argument
@parameter_options
@option("--lock-policy", "Lock policy: what is held while an editor decides.", to="policy", type=click.Choice(POLICIES))
@editor_options
@concurrency_option
@option(
    "--approve RULE",
    "With --store: edits that wait for a person: 'all', 'destructive', or 'edits=… tasks=… executors=… devices=… "
    "authors=… effects=… cost=…'; repeatable.",
    to="approvals",
    type=approval_rule,
    multiple=True,
)
@record_options(PlanOptions, CONDITIONS)
@option(
    "--scope SCOPE",
    "What editors may do: 'any', or 'editors=… edits=… tasks=… executors=… work=… fields=… devices=… secrets=… "
    "waits=… uses=… adds=… size=… retries=…'; repeatable.",
    to="scopes",
    type=edit_scope,
    multiple=True,
)
@size_option(
    "--result-limit",
    "64M",
    help="Without --store: a larger result fails its task. In a store, `asterism fleet set --most` is the limit.",
)
@option(
    "--store URL",
    "Store the plan and run it on the devices of this store's fleet, or of a server: sqlite:///file.db, "
    "postgresql://…, https://… or the name of a server; memory: runs it in this process alone. Default: "
    "$ASTERISM_STORE.",
    envvar="ASTERISM_STORE",
)
@option(
    "--id NAME",
    "With --store: the name of the plan. {name}, {date}, {time} and {seconds} stand for the id of the plan file "
    "and the time of the start. Default: the id in the plan file; a file without one: '{name}-{date}-{time}'.",
    to="name",
)
@option(
    "--tick TIME",
    "The tick that {tick} and $ASTERISM_TICK stand for: 2026-11-17, or a time such as 2026-11-17T03:00+01:00.",
    type=tick_text,
)
@local_options
@option("--serve", "Print a link to watch and change the plan in a browser while it runs; stores it.")
@report_option
@result_options
@option("--json", "Print the result as JSON; all else goes to standard error.", to="as_json")
@plain_option
def run(
    plan: str,
    policy: str | None,
    editor: str | None,
    edit_on: Any,
    as_json: bool,
    store: str | None,
    serve: bool,
    settings: dict[str, str],
    params_file: str | None,
    only: tuple[str, ...],
    tick: str | None,
    result_limit: int,
    **option_values: Any,
) -> int:
    """Run the plan in a plan file, or the Python plan at module:plan.

    asterism run plan.yaml
    asterism run nightly_etl:plan --store sqlite:///etl.db

    Exits with 0 if the plan completed, 1 if it failed, 2 if it failed in part, 130 if it was cancelled or stopped, 64
    if it could not start. Ctrl-C cancels the plan: running tasks are asked to stop. A second Ctrl-C does not wait for
    them.

    With --store the plan is stored, and its tasks are runs of a fleet. Ctrl-C then stops only this process: tasks on
    other devices continue, tasks in this process are handed back, and `asterism resume` continues the plan, as after a
    crash. --serve without --store uses the default store, and adds the time to the name of the plan; so does --editor
    model, because the exchanges and the budget of the model are kept in a store.

    At a server, the server runs the plan: the plan file, its includes and parameters are read here, functions, secrets
    and files of tasks are those of the devices. Ctrl-C only ends the following; `asterism plan watch` follows it
    again."""
    if store is not None and store.lower().startswith("memory:"):
        store = None
    stored = store is not None or serve or editor == MODEL
    _check_place_options(server_of(store) is not None, stored, editor)
    output = OutputOptions.take(option_values, as_json)
    result = output.result
    allow_imports(plan)
    plan_file = load_plan_file(plan, given_parameters(settings, params_file), only, fleet=stored, tick=tick)
    if not stored:
        _check_secrets(plan_file)
        _check_approvals(plan_file)
    if result is not None and result not in plan_file.constellation and not _may_grow(plan_file, editor):
        hint = suggestion(result, list(plan_file.constellation.nodes)) or "."
        raise click.BadParameter(f"the plan has no task {result!r}{hint}", param_hint="--result")
    if server_of(store) is not None:
        option_values |= {"policy": policy, "only": list(only), "tick": tick}
        return _run_at_server(store, plan, plan_file, option_values, output)
    store_terms = {name: option_values.pop(name) for name in STORE_OPTIONS}
    option_values |= {"policy": policy or plan_file.policy or "scoped", **editor_terms(editor, edit_on, option_values)}
    option_values["rank"] = any(node.task.estimate is not None for node in plan_file.constellation.nodes.values())
    if stored:
        return _run_in_store(store, plan, plan_file, {**option_values, **store_terms}, output, serve)
    return _run_here(plan, plan_file, option_values, output, result_limit)


def _check_place_options(at_server: bool, stored: bool, editor: str | None) -> None:
    """Raise UsageError for options that have no effect where the plan runs."""
    if at_server:
        why = "has no effect at a server: the server runs the plan, and its devices execute the tasks."
        refuse_options(why, *NOT_AT_A_SERVER)
        why = "cannot be used at a server: the server runs the plan without an editor"
        refuse_options(f"{why}; edit it with: asterism plan edit NAME", "editor")
    if stored:
        refuse_options("has no effect with --store: use `asterism fleet set --most SIZE`.", "result_limit")
    else:
        refuse_options("needs --store: without it, the plan ends with this process.", *STORE_OPTIONS)
    if editor is None:
        refuse_options(NO_EDITOR, "edit_on", *(() if stored else EDITOR_OPTIONS))
    if editor == OUTSIDE and not stored:
        raise click.UsageError("--editor outside needs --store: editors reach the plan through the store.")


def _may_grow(plan_file: PlanFile, editor: str | None) -> bool:
    """Whether tasks may be added while the plan runs: by an editor, or for the elements of an upstream result."""
    from asterism.execution.foreach_expansion import template_of

    return editor is not None or any(template_of(node.task) for node in plan_file.constellation.nodes.values())


def _check_secrets(plan_file: PlanFile) -> None:
    """Raise UnusablePlanFile if a task needs a secret that this process does not have: all tasks execute in it."""
    import os

    from asterism.base.secret_mask import secrets_of_task
    from asterism.execution.foreach_expansion import template_of

    missing: dict[str, str] = {}
    for node in plan_file.constellation.nodes.values():
        for name in secrets_of_task(template_of(node.task) or node.task):
            if name not in os.environ:
                missing.setdefault(name, node.task.id)
    if missing:
        needs = ", ".join(f"{name!r} (task {task!r})" for name, task in missing.items())
        what = f"The environment lacks secrets of the plan: {needs}; nothing was done."
        raise UnusablePlanFile(clean(f"{what} Set them, or run the plan on devices that have them: --store URL."))


def _check_approvals(plan_file: PlanFile) -> None:
    """Raise UnusablePlanFile if a task needs approval: nobody could give it in a plan without a store."""
    from asterism.execution.foreach_expansion import template_of

    for node in plan_file.constellation.nodes.values():
        if (template_of(node.task) or node.task).approval is not None:
            what = f"Task {node.id!r} needs approval, which a person gives in a plan that is in a store"
            raise UnusablePlanFile(clean(f"{what}; nothing was done. Run it with --store URL."))


def _run_here(
    path: str, plan_file: PlanFile, option_values: dict[str, Any], output: OutputOptions, result_limit: int
) -> int:
    import asyncio

    from asterism.cli.interrupts import run_until_interrupted
    from asterism.cli.plan.plan_context import default_slots, print_result, prints_beside, quiet_log, warn_of_slots
    from asterism.cli.plan.plan_live_view import watched
    from asterism.cli.screen import Screen
    from asterism.orchestrator.devices import LocalDevice
    from asterism.orchestrator.orchestrator import Orchestrator
    from asterism.report.result_report import PlanOrigin, Recording

    async def run(records: ResultRecords | None) -> int:
        plan = plan_file.constellation
        plan.author = current_user()
        concurrency = option_values["concurrency"]
        slots = [line.slots if line.sized else default_slots(concurrency) for line in plan_file.devices]
        devices = [
            LocalDevice(line.id, number, line.can, json_results=True, result_limit=result_limit)
            for line, number in zip(plan_file.devices, slots, strict=True)
        ]
        warn_of_slots(concurrency, sum(slots), "the devices of the plan file have")
        if not is_given("no_device_timeout"):  # no device can join
            option_values["no_device_timeout"] = 0.0
        orchestrator = Orchestrator(devices, records=records, approval_timeout=NOBODY_APPROVES, **option_values)
        recording = Recording(plan, orchestrator.events)
        screen = Screen(stderr=output.to_stderr)
        with prints_beside(output):
            async with watched(orchestrator, plan, screen, plain=output.plain):
                result = await run_until_interrupted(orchestrator, plan)
        recording.close()
        return print_result(result, recording, output, screen, origin=PlanOrigin(Path(path).name, plan_file.params))

    with quiet_log(but=("asterism.unchanged",)):
        return asyncio.run(_with_records(plan_file, run))


async def _with_records(plan_file: PlanFile, run: Callable[[ResultRecords | None], Awaitable[int]]) -> int:
    """Run with the records of the default store, if a task may be skipped because its files have not changed."""
    from asterism.execution.foreach_expansion import template_of

    tasks = (template_of(node.task) or node.task for node in plan_file.constellation.nodes.values())
    if all(task.skip_if_unchanged is None for task in tasks):
        return await run(None)
    import os

    from asterism.orchestrator.result import StoreRecords
    from asterism.store.url import VARIABLE, default_file, open_store

    at_server = server_of(os.environ.get(VARIABLE) or None) is not None
    store = await open_store(f"sqlite:///{default_file(make=True)}" if at_server else None)
    try:
        return await run(StoreRecords(store))
    finally:
        await store.close()


def _run_at_server(
    store: str | None, path: str, plan_file: PlanFile, option_values: dict[str, Any], output: OutputOptions
) -> int:
    """Submit a plan to a server, and follow it."""
    fields: dict[str, Any] = {
        **sent_file(path, plan_file),
        "approvals": [str(rule) for rule in option_values["approvals"]],
        "scopes": [str(scope) for scope in option_values["scopes"]],
        **{name: option_values[name] for name in SUBMITTED_OPTIONS},
    }

    async def work(system: System) -> int:
        from asterism.cli.plan.plan_watch import run_at_server

        name = next(plan_file.names(option_values["name"]))
        return await run_at_server(system, lambda: system.submit_plan(**fields), name, output)

    return with_system(store, work)


def _run_in_store(
    store: str | None,
    path: str,
    plan_file: PlanFile,
    option_values: dict[str, Any],
    output: OutputOptions,
    serve: bool = False,
) -> int:
    from asterism.cli.plan.plan_context import quiet_log
    from asterism.cli.plan.plan_execution import WatchedOrchestrator, begin, follow

    plan, file = plan_file.constellation, Path(path).name
    names = plan_file.names(option_values.pop("name") or (EACH_START if store is None else None))
    can = frozenset(word for line in plan_file.devices for word in line.can)
    local = local_work(option_values.pop("local"), option_values.pop("no_local"), can)

    async def work(fleet: Fleet) -> int:
        orchestrator = WatchedOrchestrator(fleet, local, output, **await resolve_editor(fleet, option_values))

        async def run() -> int:
            return await follow(orchestrator, plan, lambda: begin(orchestrator, plan, plan_file.params, names, file))

        if not serve:
            return await run()
        from asterism.cli.fleet.server_process import serve_while

        return await serve_while(fleet, run, stay=not output.as_json)

    with quiet_log(but=("asterism.journal", "asterism.device", "asterism.unchanged")):
        return with_fleet(store, work, create=True)


@click.command()
@plan_argument
@parameter_options
@option("--imports", "Also import the functions of call tasks. This runs their modules.")
@json_option
def check(
    plan: str,
    imports: bool,
    as_json: bool,
    settings: dict[str, str],
    params_file: str | None,
    only: tuple[str, ...],
) -> int:
    """Report every mistake in a plan file, with line numbers.

    PLAN.YAML may be the name of a Python plan, module:plan, which is then imported. Parameters without a value are no
    mistake here. Exits with 0 if the plan can run, with 64 if not."""
    from asterism.base.text import plural
    from asterism.planfile import check as check_file
    from asterism.planfile.python_plan import is_python_plan

    if imports or is_python_plan(plan):
        allow_imports(plan)
    try:
        params = given_parameters(settings, params_file, required=False)
        plan_file, mistakes = check_file(plan, imports=imports, params=params, only=only)
    except OSError as error:
        raise UnusablePlanFile(f"{clean(plan)} cannot be read: {error.strerror}.") from None
    if as_json:
        print_json(_findings_json(plan, plan_file, mistakes))
        return 0 if plan_file is not None else UNUSABLE
    for mistake in mistakes:
        click.echo(mistake.format(plan), err=True)
    if plan_file is None:
        raise UnusablePlanFile(f"{_count(mistakes)} in {clean(plan)}.")
    tasks, edges = len(plan_file.constellation), sum(1 for _ in plan_file.constellation.dependencies)
    warnings = f", with {_count(mistakes)}" if mistakes else ""
    click.echo(f"{clean(plan)} is valid: {plural(tasks, 'task')}, {plural(edges, 'dependency')}{warnings}.")
    return 0


def _findings_json(plan: str, plan_file: PlanFile | None, mistakes: Iterable[Mistake]) -> JsonObject:
    """What ``check`` found, for programs."""
    from asterism.core.record import encode

    findings = [
        {"file": plan, **{name: value for name, value in encode(each).items() if value != ""}} for each in mistakes
    ]
    return {
        "file": plan,
        "valid": plan_file is not None,
        "tasks": None if plan_file is None else len(plan_file.constellation),
        "dependencies": None if plan_file is None else sum(1 for _ in plan_file.constellation.dependencies),
        "mistakes": [finding for finding in findings if not finding["warning"]],
        "warnings": [finding for finding in findings if finding["warning"]],
    }


@click.command()
@plan_argument
@parameter_options
@drawing_options
@json_option
def show(
    plan: str,
    as_mermaid: bool,
    as_json: bool,
    settings: dict[str, str],
    params_file: str | None,
    only: tuple[str, ...],
) -> None:
    """List the tasks of a plan file, or of the Python plan at module:plan.

    Each is below a task that it depends on. `asterism plan show NAME` shows a plan in a store, with the states of its
    tasks."""
    from asterism.planfile.python_plan import is_python_plan

    check_drawing_options(as_mermaid, as_json)
    if is_python_plan(plan):
        allow_imports(plan)
    elif not Path(plan).exists() and not plan.endswith((".yaml", ".yml")):
        name = clean(plan)
        raise UnusablePlanFile(f"There is no file {name}. To show a plan in a store, use: asterism plan show {name}")
    constellation = load_plan_file(plan, given_parameters(settings, params_file, required=False), only).constellation
    if as_json:
        from asterism.api.local.plan_documents import content

        print_json(content(constellation))
    else:
        draw(constellation, as_mermaid)


@click.command()
def schema() -> None:
    """Print the JSON Schema of plan files.

    Editors use it to complete and check plan files."""
    import json

    from asterism.planfile import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def given_parameters(settings: dict[str, str], params_file: str | None, *, required: bool = True) -> GivenParameters:
    """The values that ``--set`` and ``--params`` give. Unless ``required``, the others get stand-ins."""
    from asterism.planfile import GivenParameters

    return GivenParameters(texts=settings, file=params_file, required=required)


def load_plan_file(
    path: str, params: GivenParameters | None = None, only: tuple[str, ...] = (), **options: Any
) -> PlanFile:
    """The plan in a file, after printing its warnings; ``options`` are those of ``load``. Raises UnusablePlanFile with
    every mistake."""
    from asterism.planfile import BadPlan, load

    try:
        plan_file = load(path, params=params or {}, only=only, **options)
    except BadPlan as bad:
        raise UnusablePlanFile(f"{bad}\n{_count(bad.mistakes)} in {clean(path)}; nothing was done.") from None
    except OSError as error:
        raise UnusablePlanFile(f"{clean(path)} cannot be read: {error.strerror}.") from None
    for warning in plan_file.warnings:
        click.echo(warning.format(path), err=True)
    return plan_file


def sent_file(path: str, plan_file: PlanFile) -> JsonObject:
    """The fields of a request with a plan file, and with all that it includes."""
    from asterism.planfile.include import included_texts
    from asterism.planfile.loader import read_plan
    from asterism.planfile.python_plan import is_python_plan

    return {
        "text": read_plan(path)[0],
        "file": Path(path).name,
        "includes": {} if is_python_plan(path) else included_texts(path),
        "params": dict(plan_file.params),
    }


def _count(mistakes: Iterable[Mistake]) -> str:
    """``2 mistakes and 1 warning``."""
    from asterism.base.text import plural

    mistakes = list(mistakes)
    warnings = sum(mistake.warning for mistake in mistakes)
    numbers = [(len(mistakes) - warnings, "mistake"), (warnings, "warning")]
    return " and ".join(plural(number, noun) for number, noun in numbers if number)
