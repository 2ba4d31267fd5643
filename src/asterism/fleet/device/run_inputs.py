"""Inputs of a run: references and secrets, filled into the command, environment or request of its workflow.

The input of a run is data. The one exception is ``{"secret": NAME}`` as the whole of a named value. A value that merely
looks like that, such as the result of another task, is given as ``{"$literal": …}``. In ``env`` and ``http`` of the
workflow, ``{"from": NAME, "select": …}`` refers to an input of the run and ``{"secret": NAME}`` to a variable of the
device. All secrets are collected, after the device policy has allowed each of them, before anything is evaluated: every
later error message is masked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asterism.base.expressions import Selections
from asterism.base.secret_mask import Mask, secret_names
from asterism.base.trace_context import VARIABLE
from asterism.core.errors import DeviceUnavailable, safe_repr
from asterism.core.run.run import Run
from asterism.core.run.workflow import Workflow
from asterism.execution import task_inputs
from asterism.execution.task_inputs import MissingInput, ResolvedInputs

if TYPE_CHECKING:
    from asterism.fleet.policy.device_policy import DevicePolicy

CONSTANTS = frozenset({str, int, float, bool, type(None), list})
"""Types whose values never hold a reference."""

_LITERAL = "$literal"


def secrets_of(workflow: Workflow, given: Any, policy: DevicePolicy) -> frozenset[str]:
    """The names of the secrets that a run refers to; the device policy allows all of them, and the device has them.
    Evaluates nothing. Raises PolicyForbids, and DeviceUnavailable for a secret that this device does not have."""
    if workflow.http is None and stands_for_itself(workflow, given):
        return frozenset()
    names = frozenset(_secret_names(workflow, given))
    for name in sorted(names):
        policy.secret(name)
        if name not in os.environ:
            raise DeviceUnavailable(f"the environment of this device has no secret {name!r}")
    return names


def _secret_names(workflow: Workflow, given: Any) -> Iterator[str]:
    yield from secret_names([workflow.env, workflow.http])
    for value in given.values() if isinstance(given, Mapping) else ():
        if is_secret(value):
            if not isinstance(value["secret"], str):
                raise MissingInput(f"the name of a secret must be text, not {safe_repr(value['secret'])}")
            yield value["secret"]


def fill(workflow: Workflow, given: Any, mask: Mask) -> ResolvedInputs:
    """The inputs and variables of one run, with its secrets from ``mask``. Raises MissingInput, and what an expression
    raises: call it under the mask."""
    if stands_for_itself(workflow, given):
        return ResolvedInputs(dict(given), {}, mask)  # the usual case, on the hot path of every run
    if not isinstance(given, Mapping):
        raise MissingInput(f"the input of a run must be an object of named values, not {safe_repr(given)}")
    values = {
        name: _secret(value["secret"], mask) if is_secret(value) else _bare(value) for name, value in given.items()
    }
    select = Selections()
    environment = {
        name: task_inputs.input_text(_filled(value, values, mask, select)) for name, value in workflow.env.items()
    }
    return ResolvedInputs(values, environment, mask)


def stands_for_itself(workflow: Workflow, given: Any) -> bool:
    """Whether neither the input nor the variables of the workflow hold a reference."""
    return type(given) is dict and not workflow.env and CONSTANTS.issuperset(map(type, given.values()))


def request_terms(workflow: Workflow, resolved: ResolvedInputs) -> dict[str, Any]:
    """The terms of a workflow's HTTP request for one run."""
    assert workflow.http is not None
    terms = _deep(dict(workflow.http), resolved.inputs, resolved.mask, Selections())
    terms["url"] = task_inputs.fill_template(terms["url"], resolved.inputs, task_inputs.url_quoted)
    return terms  # type: ignore[no-any-return]


def _deep(value: Any, given: Mapping[str, Any], mask: Mask, select: Selections) -> Any:
    if task_inputs.is_reference(value):
        return _filled(value, given, mask, select)
    if isinstance(value, Mapping):
        return {key: _deep(item, given, mask, select) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_deep(item, given, mask, select) for item in value]
    return value


def _filled(value: Any, given: Mapping[str, Any], mask: Mask, select: Selections) -> Any:
    if not task_inputs.is_reference(value):
        return value
    if "secret" in value:
        return _secret(value["secret"], mask)
    name, expression = value["from"], value.get("select")
    if not isinstance(name, str) or name not in given:
        raise MissingInput(f"the workflow refers to the input {safe_repr(name)}, which the run does not have")
    return given[name] if expression is None else select(expression, {"result": given[name]})


def is_secret(value: Any) -> bool:
    return task_inputs.is_reference(value) and "secret" in value


def literal(value: Any) -> Any:
    """A value as an input of a run that is taken as it is, even if it looks like a reference."""
    if type(value) in CONSTANTS:
        return value
    return {_LITERAL: value} if is_secret(value) or _is_literal(value) else value


def bare(given: Mapping[str, Any]) -> dict[str, Any]:
    """An input as the work reads it, without the ``$literal`` marks."""
    return {name: _bare(value) for name, value in given.items()}


def _bare(value: Any) -> Any:
    return value[_LITERAL] if _is_literal(value) else value


def _is_literal(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {_LITERAL}


def _secret(name: Any, mask: Mask) -> str:
    if not isinstance(name, str) or name not in mask.values:
        raise MissingInput(f"the name of a secret must be text, not {safe_repr(name)}")
    return mask.values[name]


# -- commands ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command that the device policy allows. ``executable`` is the file to execute if the policy chose it."""

    argv: list[str]
    executable: str | None
    environment: dict[str, str]
    cwd: str | None


def command_of(
    run: Run,
    workflow: Workflow,
    resolved: ResolvedInputs,
    texts: Mapping[str, str],
    policy: DevicePolicy,
    marks: Mapping[str, str],
) -> Command:
    """The command of a run; ``texts`` are its inputs as a command sees them, ``marks`` the variables of every process
    of this device. Raises TooLarge, PolicyForbids, and DeviceUnavailable for what this device does not have."""
    argv, executable = _words(workflow, resolved, policy)
    policy.variables(resolved.environment)
    _check_variables(workflow, resolved, policy)
    environment = task_inputs.passable(argv, environment_of(run, workflow, resolved, texts, policy, marks))
    if executable is None:
        _check_on_path(argv[0], environment)
    return Command(argv, executable, environment, policy.directory(workflow.cwd))


def judge_command(workflow: Workflow, resolved: ResolvedInputs, policy: DevicePolicy) -> None:
    """Raises PolicyForbids, and DeviceUnavailable for what this device does not have."""
    argv, executable = _words(workflow, resolved, policy)
    policy.variables(resolved.environment)
    policy.directory(workflow.cwd)
    _check_variables(workflow, resolved, policy)
    if executable is None:
        _check_on_path(argv[0], {**os.environ, **resolved.environment})


def _words(workflow: Workflow, resolved: ResolvedInputs, policy: DevicePolicy) -> tuple[list[str], str | None]:
    """The words of a command, and the file to execute if the device policy chose it."""
    if workflow.shell is not None:
        policy.shell()
        return ["/bin/sh", "-c", workflow.shell], None
    assert workflow.argv is not None
    argv = [task_inputs.fill_template(word, resolved.inputs) for word in workflow.argv]
    program = policy.command(argv[0])
    return (argv, None) if program is None else ([program.name, *argv[1:]], program.file)


def environment_of(
    run: Run,
    workflow: Workflow,
    resolved: ResolvedInputs,
    texts: Mapping[str, str],
    policy: DevicePolicy,
    marks: Mapping[str, str],
) -> dict[str, str | task_inputs.InputVariable]:
    """The variables of a process that executes a run; ``marks`` are those of every process of this device."""
    last = run.progress
    own = {
        **marks,
        "ASTERISM_RUN": run.id,
        "ASTERISM_EPOCH": str(run.epoch),
        "ASTERISM_STEP": "" if last is None else str(last.step),
        "ASTERISM_TOTAL": "" if last is None or last.total is None else str(last.total),
    }
    if run.traceparent is not None:
        own[VARIABLE] = run.traceparent

    def is_bare(name: str) -> bool:
        """Whether an input becomes a variable under its bare name: the device policy lists it, or allows everything and
        the shell line mentions it."""
        if not policy.everything:
            return policy.may_be_given(name)
        return workflow.shell is not None and task_inputs.mentions_name(workflow.shell, name)

    work = workflow.shell or " ".join(workflow.argv or ())
    return {
        **task_inputs.bare_variables(texts, work, is_bare),
        **{name: value for name, value in os.environ.items() if policy.passes(name)},
        **resolved.environment,
        **task_inputs.prefixed_variables(texts, work),
        **own,
    }


def _check_variables(workflow: Workflow, resolved: ResolvedInputs, policy: DevicePolicy) -> None:
    """Refuse a shell line that uses the variable of an input which cannot be set: the device policy does not list it,
    or the device has a variable of that name, which no run replaces."""
    line = workflow.shell or ""
    task_inputs.check_shell_line(line, resolved.inputs, resolved.environment)
    for name in resolved.inputs:
        if task_inputs.refers_to_variable(line, name) and name not in resolved.environment:
            policy.counts_on(name)
            if name in os.environ and policy.passes(name):
                raise DeviceUnavailable(
                    f"this device has a variable {name!r} of its own, which an input does not replace; "
                    f"{task_inputs.variable_advice(name)}"
                )


def _check_on_path(word: str, environment: Mapping[str, str]) -> None:
    """Raises DeviceUnavailable for a command that is not on the PATH: another device may have it."""
    import shutil

    if "/" not in word and shutil.which(word, path=environment.get("PATH") or os.defpath) is None:
        raise DeviceUnavailable(f"there is no command {word!r} on this device")
