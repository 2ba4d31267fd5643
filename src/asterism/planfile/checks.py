"""Checks of a task beyond its shape: names exist, expressions parse, every ``{name}`` has an input.

Checks of the placeholders and names in a task: every ``{params.day}`` and every ``params.day`` exists.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

from asterism.base import expressions
from asterism.base.cel.cel_values import InvalidExpression
from asterism.base.expressions import NAMESPACES, TICK, with_constants
from asterism.base.linear_regex import UnsupportedPattern, check_patterns
from asterism.base.secret_mask import short_secret_warning
from asterism.base.startup import install_hint
from asterism.base.text import request_url_problem
from asterism.core.errors import describe_value, suggestion
from asterism.core.plan import awaited, task_files
from asterism.core.plan.task import ACTIONS, AgentWork, plugin_name
from asterism.core.plan.task_approval import EXCLUDED
from asterism.core.plan.teardowns import order_problem
from asterism.core.record import Place, Record, Struct, field, format_place
from asterism.core.schedule.tick_values import TICK_PATHS, VARIABLES
from asterism.execution import task_inputs
from asterism.execution.command_inputs import FILE_PREFIX
from asterism.execution.placeholders import Scope, placeholders
from asterism.execution.task_inputs import VARIABLE_PREFIX, MissingInput, fill_template, is_reference, is_reserved
from asterism.planfile import models
from asterism.planfile.foreach import element_names, foreach_findings

Finding = tuple[Place, str, bool]
"""A path in the task, a sentence about it, and whether it is only a warning."""


class PlanContext(Record):
    """What a task can refer to. ``devices`` maps ids to capabilities, None if unknown. ``imports`` allows importing the
    functions of ``call`` tasks, which runs foreign code. ``params`` are the names of the plan's parameters; ``ticks``
    says whether its texts may name a tick; ``environment`` has the variables of this process, or is None if the plan
    does not run in it: a server tells nobody which ones it has. ``groups`` are the tasks that have elements."""

    tasks: Collection[str]
    devices: Mapping[str, frozenset[str]] | None
    imports: bool = False
    places: tuple[str, ...] = ()  # folders, beside the path of Python, that contain modules
    params: tuple[str, ...] = ()
    ticks: bool = False
    environment: Mapping[str, str] | None = None
    groups: Collection[str] = ()


class TaskChecks(Struct):
    """The checks of one task. ``faulty`` are the keys whose shape is wrong: what other keys refer to may be missing."""

    name: str
    task: models.Task
    faulty: Collection[str]
    context: PlanContext
    sources: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # the valid dependencies

    def findings(self) -> Iterator[Finding]:
        """Yield every mistake and warning. Afterwards ``sources`` has the dependencies."""
        if not self.name or not self.name.isprintable():
            yield (), "its name is empty or contains a control character", False
        yield from self._actions()
        yield from self._dependencies()
        yield from self._files()
        if self.task.teardown is not None:
            yield from self._teardown()
        if (self.task.foreach is not None or self.task.matrix is not None) and "foreach" not in self.faulty:
            yield from foreach_findings(self.task, self.context.tasks, self.sources)
        for path, value in _values(self.task):
            yield from self._value(path, value)
        yield from self._templates()
        if self._scope:
            yield from unknown_placeholders(self.task, self._scope)
        if self.task.device is not None and self.context.devices is not None:
            yield from self._device(self.context.devices)
        if self.task.call is not None:
            yield from self._call(self.task.call)
        if self.task.http is not None:
            yield from self._request(self.task.http)
        if self.task.agent is not None:
            yield from self._agent(self.task.agent)
        if self.task.plugin is not None:
            yield from self._plugin(self.task.plugin)
        if self.task.approval is not None:
            yield from self._approval()

    def _actions(self) -> Iterator[Finding]:
        actions = [action for action in ACTIONS if getattr(self.task, action) is not None]
        if len(actions) > 1:
            yield (actions[1],), f"has {' and '.join(actions)}; a task has one action", False
        if self.task.wait_for is not None:
            yield from self._wait()
        elif not actions and not any(get_close_matches(key, (*ACTIONS, "wait_for")) for key in self.faulty):
            yield (), f"has no action; give it one of {', '.join(ACTIONS)}, or wait_for", False

    def _wait(self) -> Iterator[Finding]:
        """A task that waits has no action, and nothing that says how a device executes one."""
        problem = awaited.excluded_problem(self.task, [name for name in awaited.EXCLUDED if name not in _OF_GROUPS])
        if problem is not None:
            yield ("wait_for",), problem, False
        if self.task.teardown is not None:
            yield ("teardown",), "is a teardown, so it cannot wait: a teardown ends in bounded time", False

    def _approval(self) -> Iterator[Finding]:
        for name in [name for name in EXCLUDED if name != "foreach" and getattr(self.task, name)]:
            yield (name,), f"a task with approval cannot have {name}", False
        if self.task.teardown is not None:
            yield ("teardown",), "is a teardown, so it cannot need approval: a teardown runs in any case", False

    def _dependencies(self) -> Iterator[Finding]:
        for source, on, when, path in self.task.dependencies():
            verb = "tears down" if on == "teardown" else "comes after"
            if source == self.name:
                yield path, f"{verb} itself", False
            elif source not in self.context.tasks:
                yield path, f"{verb} {source!r}, but there is no such task{self._suggestion(source)}", False
            elif source in self.sources:
                yield path, f"names {source!r} twice in {self._keys_naming(source)}", False
            else:
                self.sources[source] = (on, when)
            if on != "failure" and self.task.handles_failure_of(source):
                yield path, f"after.{source}: handled needs on: failure", False
            problem = None if when is None else self._expression_problem(when)
            if problem is not None:
                yield (*path, "when"), f"the condition {when!r} is not valid: {problem}", False

    def _files(self) -> Iterator[Finding]:
        """The outputs, and the tasks whose files are taken: this one comes after them."""
        for key, text in task_files.field_problems(self.task):
            yield (key,), text, False
        unchanged = self.task.skip_if_unchanged
        problem = None if unchanged is None else task_files.unchanged_problem(self.task, unchanged.to_json())
        if problem is not None:
            yield ("skip_if_unchanged",), problem, False
        for name, value in (self.task.inputs or {}).items():
            reference = task_files.read_reference(value) if task_files.is_files_reference(value) else None
            if reference is None:
                continue
            if reference.task == self.name:
                yield ("inputs", name), f"the input {name!r} takes files of the task itself", False
            elif reference.task not in self.context.tasks:
                hint = self._suggestion(reference.task)
                problem = task_files.source_problem(name, reference, None)
                yield ("inputs", name), f"{problem}{hint}", False
            else:
                self.sources.setdefault(reference.task, ("success", None))

    def _keys_naming(self, source: str) -> str:
        keys = [str(path[0]) for name, _, _, path in self.task.dependencies() if name == source]
        return " and ".join(dict.fromkeys(key for key in ("after", "handles", "teardown") if key in keys))

    def _teardown(self) -> Iterator[Finding]:
        """A teardown is a single task, which nothing but its set-up may keep from running."""
        for source, on, when, path in self.task.dependencies():
            if path[0] != "teardown" and source != self.task.teardown and (on != "always" or when is not None):
                yield path, order_problem(source, self.name), False
        if self.task.foreach is not None or self.task.matrix is not None:
            key = "foreach" if self.task.matrix is None else "matrix"
            yield (key,), f"is a teardown, so it cannot have {key}: a teardown is a single task", False
        if self.task.join == "any":
            yield ("join",), "is a teardown, so it cannot have join: any", False

    @property
    def _scope(self) -> Scope:
        """The names that placeholders and expressions can use, without their values."""
        scope = element_names(self.task)
        if self.context.ticks and TICK not in (self.task.inputs or ()):
            scope = {**scope, **dict.fromkeys(TICK_PATHS, "")}
        return {"params": dict.fromkeys(self.context.params), **scope} if self.context.params else scope

    def _expression_problem(self, text: str) -> str | None:
        """What is wrong with a condition or selection; None if it is valid."""
        problem = expressions.check(text)
        return problem if problem is not None or not self._scope else constants_problem(text, self._scope)

    def _suggestion(self, source: str) -> str:
        return suggestion(source, list(self.context.tasks)) if len(self.context.tasks) <= 1000 else ""

    def _value(self, path: Place, value: Any) -> Iterator[Finding]:
        """A constant, or a reference to a result or a secret."""
        if not is_reference(value):
            if isinstance(value, dict) and str(value.get("from")) in self.sources:
                odd = ", ".join(sorted(set(value) - {"from", "select", "failed"}))
                yield (
                    path,
                    f"{format_place(path)} is a constant, not a reference, because it has {odd} beside from",
                    True,
                )
        elif "secret" in value:
            if not isinstance(value["secret"], str):
                yield path, f"{format_place(path)}: the name of a secret must be text", False
            elif self.context.environment is not None:
                yield from _secret_warnings(path, value["secret"], self.context.environment)
        elif "after" not in self.faulty and str(value["from"]) not in self.sources:
            yield (
                path,
                f"{format_place(path)} refers to {describe_value(value['from'])}, which is not in its after",
                False,
            )
        if is_reference(value) and value.get("select") is not None:
            expression = str(value["select"])
            problem = self._expression_problem(expression)
            if problem is not None:
                yield (*path, "select"), f"the expression {expression!r} is not valid: {problem}", False
        if is_reference(value) and "failed" in value:
            yield from self._failed(path, str(value["from"]), value["failed"])

    def _failed(self, path: Place, source: str, failed: Any) -> Iterator[Finding]:
        """What a reference says of the elements of a group that failed."""
        problem = task_inputs.failed_problem(failed)
        if problem is None and path[0] != "inputs":
            problem = "failed belongs to inputs only; give the variable or the request an input"
        if problem is None and source not in self.context.groups:
            problem = f"failed says what becomes of the elements of a group, and {source!r} is a single task; remove it"
        if problem is None and failed != "fail" and self.sources.get(source, ("",))[0] == "success":
            name = "null" if failed is None else failed
            problem = (
                f"failed: {name} has no effect after the success of {source!r}; write after: {{{source}: completion}}"
            )
        if problem is not None:
            yield (*path, "failed"), problem, False

    def _templates(self) -> Iterator[Finding]:
        """Every ``{name}`` in a command or URL has an input."""
        texts: list[tuple[Place, str]] = []
        if self.task.argv is not None:
            texts = [(("argv", index), word) for index, word in enumerate(self.task.argv) if "{" in word or "}" in word]
        elif self.task.http is not None:
            texts = [(("http", "url"), self.task.http.url)]
        if self.task.shell is not None:
            try:
                task_inputs.check_shell_line(self.task.shell, self.task.inputs or {}, self.task.env or {})
            except MissingInput as error:
                yield ("shell",), str(error), False
            if not {"inputs", "env", "foreach", "matrix"} & set(self.faulty):
                for text in shell_warnings(self.task, self.context, self.sources, self._variables()):
                    yield ("shell",), text, True
        for path, text in texts:
            try:
                fill_template(text, dict.fromkeys((*(self.task.inputs or ()), *self._scope), ""))
            except MissingInput as error:
                if not any(key in self.faulty for key in ("inputs", "foreach", "matrix")):
                    yield path, f"{error}; write {{{{ or }}}} for a brace", False

    def _variables(self) -> list[str]:
        """The names in the scope that are variables of a shell line."""
        scope = self._scope
        own = (name for name in scope if name not in TICK_PATHS)
        return [*own, *(scope.get("params") or ()), *(scope.get("matrix") or ())]

    def _device(self, devices: Mapping[str, frozenset[str]]) -> Iterator[Finding]:
        wanted = self.task.wanted
        needs = frozenset(wanted.needs or ())
        if any(True for text in (wanted.id or "", *needs) for _ in placeholders(text)):
            return
        if wanted.id is not None and wanted.id not in devices:
            known = ", ".join(devices)
            yield ("device",), f"needs the device {wanted.id!r}, which is not listed; the devices are {known}", True
        elif not any(needs <= can for name, can in devices.items() if wanted.id in (None, name)):
            who = "no listed device has it" if wanted.id is None else f"the device {wanted.id!r} does not have it"
            yield ("device",), f"needs a device with {', '.join(sorted(needs))}, but {who}", True

    def _call(self, path: str) -> Iterator[Finding]:
        if not self.context.imports:
            module = path.partition(":")[0].partition(".")[0]
            if not _exists(module, self.context.places):
                yield ("call",), f"call is {path!r}, but no module {module!r} can be found", True
            return
        from asterism.execution import function_calls
        from asterism.execution.function_modules import load_function

        try:
            signature = function_calls.signature(load_function(path))
        except (Exception, SystemExit) as error:  # importing runs foreign code, which may raise anything
            yield ("call",), f"{path!r} cannot be imported: {type(error).__name__}: {error}", False
            return
        filled = {*(self.task.inputs or ()), *self.sources, "results", TICK, *signature.optional}
        if task_files.handles_files(self.task):
            filled.add("folder")
        if not {"inputs", "after"} & set(self.faulty):
            for name in signature.names:
                if name not in filled:
                    yield ("call",), f"no input or dependency fills the parameter {name!r} of {path!r}", False
        if not signature.everything:
            for name in self.task.inputs or ():
                if name not in signature.names:
                    yield ("inputs", name), f"the input {name!r} is not a parameter of {path!r}", True

    def _agent(self, work: str | AgentWork) -> Iterator[Finding]:
        for name, value in (self.task.inputs or {}).items():
            if isinstance(value, dict) and set(value) == {"secret"}:
                yield ("inputs", name), f"inputs.{name} is a secret, which an agent must not read", False
        if isinstance(work, AgentWork) and work.result is not None and _exists("jsonschema"):
            jsonschema = import_module("jsonschema")
            try:
                jsonschema.Draft202012Validator.check_schema(work.result)
                check_patterns(work.result)
            except jsonschema.SchemaError as error:
                yield ("agent", "result"), f"agent.result is not a JSON Schema: {error.message}", False
            except UnsupportedPattern as error:
                yield ("agent", "result"), f"agent.result: {error}", False

    def _plugin(self, plugin: Mapping[str, Any]) -> Iterator[Finding]:
        """The work of a plug-in. Where placeholders stand in it, its types are known only when they are filled in."""
        from asterism.execution.actions import ACTIONS as KINDS
        from asterism.execution.plugin_actions import check_plugin, device_objection

        name = plugin_name(plugin)
        if KINDS.find(name) is None:
            text = f"the plug-in {name!r} is not installed here, so its work is not checked; a device has to have it"
            yield ("plugin", name), text, True
            return
        filled = not any(True for _, text in _texts_in((), plugin[name]) for _ in placeholders(text))
        problem = check_plugin(plugin) if filled else None
        if problem is not None:
            yield ("plugin", name), problem, False
        elif (why := device_objection(plugin)) is not None:
            yield ("plugin", name), f"{name}: {why}", True

    def _request(self, request: models.Request) -> Iterator[Finding]:
        problem = request_url_problem(request.url)
        if problem is not None:
            yield ("http", "url"), f"http.url: {problem}", False
        if request.content is not None and request.body is not None:
            yield ("http", "body"), "http has json and body; a request has one of them", False
        if not _exists("httpx"):
            yield ("http",), f"HTTP tasks need httpx: {install_hint('http')}", True


@lru_cache(maxsize=1024)
def _exists(module: str, places: tuple[str, ...] = ()) -> bool:
    """Whether a module can be found, also in ``places``. The module is not imported."""
    try:
        return find_spec(module) is not None or PathFinder.find_spec(module, places) is not None
    except ValueError:  # it is loaded, without information about its origin
        return True


def _values(task: models.Task) -> Iterator[tuple[Place, Any]]:
    """Every value of a task that may be a reference, with its path."""
    for name, value in (task.inputs or {}).items():
        yield ("inputs", name), value
    for name, item in (task.env or {}).items():
        yield ("env", name), _raw(item)
    if task.http is not None:
        for part in ("headers", "params"):
            for name, item in (getattr(task.http, part) or {}).items():
                yield ("http", part, name), _raw(item)
        yield from _deep(("http", "json"), task.http.content)


def _raw(value: Any) -> Any:
    """The value as in the file."""
    return value.to_json() if isinstance(value, models.Shape) else value


def _deep(path: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    if is_reference(value) or not isinstance(value, dict | list):
        yield path, value
    else:
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in inner:
            yield from _deep((*path, key), item)


# -- placeholder checks ------------------------------------------------------------------------------------------------


Found = tuple[Place, str]


def missing_outputs(tasks: Mapping[str, models.Task]) -> Iterator[tuple[str, str, str]]:
    """The inputs that take files which no task has: (task, input, sentence)."""
    for task_id, task in tasks.items():
        for name, reference in task_files.files_of_inputs(task.inputs or {}).items():
            source = tasks.get(reference.task) if reference.task != task_id else None
            if source is not None and (problem := task_files.source_problem(name, reference, source.outputs or ())):
                yield task_id, name, problem


_OF_GROUPS = ("foreach", "needs")
"""Excluded fields of a task: a group in a plan file has the first for its elements; the second is in ``device``."""


def constants_problem(text: str, scope: Mapping[str, Any]) -> str | None:
    """The unknown name in a valid expression; None if there is none."""
    try:
        with_constants(text, scope)
    except InvalidExpression as error:
        return str(error)
    return None


def unknown_placeholders(task: models.Task, scope: Scope) -> Iterator[tuple[Place, str, bool]]:
    """Every placeholder that names nothing in ``scope``, and every one in a shell line."""
    for path, text in _texts(task):
        template = path[0] == "argv" or path == ("http", "url")
        for name in placeholders(text, template=template):
            first, _, rest = name.partition(".")
            known = scope.get(first)
            if first == TICK and TICK in scope and name not in scope:
                yield path, f"{{{name}}}: there is no {name}; there is {', '.join(TICK_PATHS)}", False
            if first in NAMESPACES and first in scope and rest.partition(".")[0] not in (known or {}):
                what = f"there is no {_noun(first)} {rest!r}" if rest else f"{{{first}}} needs a name"
                hint = suggestion(rest, list(known or {})) or f"; there is {', '.join(known or {})}"
                yield path, f"{{{name}}}: {what}{hint}", False
    if task.shell is not None:
        for name in placeholders(task.shell.replace(f"${{{TICK}}}", "")):  # that is a variable of the line itself
            if name.partition(".")[0] in scope:
                variable = VARIABLES.get(name, name.rpartition(".")[2])
                words = f'a shell line takes values as variables: write "${variable}" instead of {{{name}}}'
                yield ("shell",), words, False


def _noun(namespace: str) -> str:
    return "parameter" if namespace == "params" else "matrix variable"


def _texts(task: models.Task) -> Iterator[Found]:
    """Every text of a task that may have placeholders, with its path."""
    for index, word in enumerate(task.argv or ()):
        yield ("argv", index), word
    for key in ("inputs", "env"):
        for name, value in (getattr(task, key) or {}).items():
            yield from _texts_in((key, name), value)
    for key in ("cwd", "description"):
        if getattr(task, key):
            yield (key,), getattr(task, key)
    for text in (task.wanted.id, *(task.wanted.needs or ())):
        if text is not None:
            yield ("device",), text
    yield from _texts_in(("outputs",), task.outputs)
    for name in task.uses or ():
        yield ("uses", name), name
    if task.wait_for is not None:
        yield from _texts_in(("wait_for",), task.wait_for.to_json())
    if task.approval is not None:
        yield from _texts_in(("approval",), task.approval.to_json())
    if task.skip_if_unchanged is not None:
        yield from _texts_in(("skip_if_unchanged",), task.skip_if_unchanged.to_json())
    if isinstance(task.agent, str):
        yield ("agent",), task.agent
    elif task.agent is not None:
        yield ("agent", "description"), task.agent.description
        yield from _texts_in(("agent", "tips"), task.agent.tips)
    yield from _texts_in(("plugin",), task.plugin)
    if task.http is not None:
        yield ("http", "url"), task.http.url
        for key, value in (("headers", task.http.headers), ("params", task.http.params), ("json", task.http.content)):
            yield from _texts_in(("http", key), value)
        yield from _texts_in(("http", "body"), task.http.body)


def _texts_in(path: Place, value: Any) -> Iterator[Found]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts_in((*path, key), item)


# -- shell lines -------------------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"(?<![\\$])\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)
_UNEXPANDED = re.compile(r"""(\"(?:\\.|[^"\\])*")|\\.|'[^']*(?:'|\Z)|(?<!\S)#[^\n]*""", re.DOTALL)
_OPAQUE = re.compile(r"""(?:^|[;&|({\n]|\bthen|\bdo|\belse)\s*(?:eval|source|\.)\s|<<-?\s*['"\\]""")
_NESTED = re.compile(r"""(?s)"[^"]*(?:\$\(|`)""")
"""What may set any variable, a here-document that is not expanded, and quotes within quotes."""
_SETTERS = "for|select|read|export|readonly|local|declare|typeset|let|mapfile|readarray|getopts|printf"


def _secret_warnings(path: Place, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    if name not in environment:
        yield path, f"{format_place(path)} needs {name!r}, which is not in the environment now", True
    elif (warning := short_secret_warning(name, environment[name])) is not None:
        yield path, warning, True


def shell_warnings(
    task: models.Task, context: PlanContext, sources: Collection[str], names: Collection[str]
) -> Iterator[str]:
    """A sentence for each input that a shell line writes as ``{name}``, and for each ``$name`` that has the name of a
    task, or the prefix of inputs, and that nothing sets: the shell gives it an empty value, and the task completes.

    The line is not parsed: where it may set the variable, give it a default, or not expand it, nothing is said.
    ``sources`` are the tasks that it comes after, ``names`` its other variables: parameters, and names of elements."""
    line, inputs = task.shell or "", task.inputs or {}
    for name in inputs:
        if re.search(rf"(?<!\$)\{{{re.escape(name)}\}}", line):
            yield f'a shell line takes inputs as variables: write "${name}" instead of {{{name}}}'
    if "$" not in line or _OPAQUE.search(line) or ("'" in line and _NESTED.search(line)):
        return
    passed = {*inputs, *(task.env or ()), *names}
    expanded = _UNEXPANDED.sub(lambda match: match[1] or "", line)
    for variable in dict.fromkeys(match[1] or match[2] for match in _VARIABLE.finditer(expanded)):
        name = variable.removeprefix(FILE_PREFIX).removeprefix(VARIABLE_PREFIX)
        if passed & {name, variable.removeprefix(VARIABLE_PREFIX)} or _sets(line, variable):
            continue
        if variable == name and (variable in (context.environment or ()) or is_reserved(variable)):
            continue
        source = next((spelling for spelling in (name, name.replace("_", "-")) if spelling in context.tasks), None)
        if source is not None:
            after = "" if source in sources else f", and after: {source}"
            yield (
                f"the line uses ${variable}, but the result of task {source!r} is not passed to it, so the variable is "
                f"empty; add inputs: {{{name}: {{from: {source}}}}}{after}"
            )
        elif variable not in (name, VARIABLE_PREFIX.rstrip("_")):
            yield f"the line uses ${variable}, but the task has no input {name!r}"


def _sets(line: str, name: str) -> bool:
    """Whether a line may set a variable, or says what to use if it is not set."""
    assigned = rf"(?<![\w$-]){name}(?:\[[^\]]*\])?\s*(?:[-+*/%&|^]|<<|>>)?="
    return re.search(rf"{assigned}|\b(?:{_SETTERS})\b[^;\n]*?(?<![\w$]){name}\b|\$\{{{name}[^\w}}]", line) is not None
