"""Inputs of a run: references and secrets, filled into the command, environment or request of its workflow.

The input of a run is data. The one exception is ``{"secret": NAME}`` as the whole of a named value. A value that merely
looks like that, such as the result of another task, is given as ``{"$literal": …}``. In ``env`` and ``http`` of the
workflow, ``{"from": NAME, "select": …}`` refers to an input of the run and ``{"secret": NAME}`` to a variable of the
device. All secrets are collected, after the device policy has allowed each of them, before anything is evaluated: every
later error message is masked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from asterism.base.secret_mask import Mask, secret_names
from asterism.core.errors import DeviceUnavailable, safe_repr
from asterism.core.run.workflow import Workflow
from asterism.execution import task_inputs
from asterism.execution.actions import Attempt
from asterism.execution.task_inputs import MissingInput, References, ResolvedInputs

if TYPE_CHECKING:
    from asterism.execution.processes import Commands
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
    secrets = RunReferences({}, mask)
    values = {name: secrets.fill(value) if is_secret(value) else _bare(value) for name, value in given.items()}
    return ResolvedInputs(values, RunReferences(values, mask).environment(workflow.env), mask)


class RunReferences(References):
    """References of a workflow: to inputs of the run, and to secrets of the device."""

    def no_secret(self, where: str, name: Any) -> str:
        return f"the name of a secret must be text, not {safe_repr(name)}"

    def no_value(self, where: str, name: Any) -> str:
        return f"the workflow refers to the input {safe_repr(name)}, which the run does not have"


def stands_for_itself(workflow: Workflow, given: Any) -> bool:
    """Whether neither the input nor the variables of the workflow hold a reference."""
    return type(given) is dict and not workflow.env and CONSTANTS.issuperset(map(type, given.values()))


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


# -- the work of a device ----------------------------------------------------------------------------------------------


class JudgedAttempt(Attempt):
    """An action on a device, which its device policy judges."""

    inputs_win = False  # the device has a variable of that name, which no run replaces
    action: Workflow

    def __init__(self, workflow: Workflow, resolved: ResolvedInputs, commands: Commands, policy: DevicePolicy) -> None:
        from asterism.fleet.policy.judged_requests import PolicyJudge  # with policies, which few commands need

        super().__init__(workflow, resolved, commands)
        self.policy, self.judge = policy, PolicyJudge(policy)

    def judge_work(self) -> None:
        """Judge all that is known before the execution. Raises PolicyForbids, and DeviceUnavailable for what this
        device does not have."""
        self.policy.workflow(self.action.name)
        if self.action.http is not None:
            terms = self.terms()
            self.policy.headers(terms.get("headers") or ())
            self.policy.url(terms["url"])
        elif self.action.call is not None:
            self.policy.call(self.action.call)
        elif self.action.agent is not None:
            self.policy.variables(self.resolved.environment)
            self.directory()
        else:
            self.words()
            self.check_variables()
            self.directory()

    def references(self) -> References:
        return RunReferences(self.resolved.inputs, self.resolved.mask)

    def words(self) -> tuple[list[str], str | None]:
        if self.action.shell is not None:
            self.policy.shell()
        argv, _ = super().words()
        if self.action.shell is not None:
            return argv, None
        program = self.policy.command(argv[0])
        if program is not None:
            return [program.name, *argv[1:]], program.file
        path = {**self.inherited(), **self.resolved.environment}.get("PATH") or os.defpath
        if "/" not in argv[0] and shutil.which(argv[0], path=path) is None:  # another device may have it
            raise DeviceUnavailable(f"there is no command {argv[0]!r} on this device")
        return argv, None

    def directory(self) -> str | None:
        return self.policy.directory(self.action.cwd)

    def inherited(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if self.policy.passes(name)}

    def is_bare(self, name: str) -> bool:
        """The device policy lists the name, or allows everything and the shell line mentions it."""
        return super().is_bare(name) if self.policy.everything else self.policy.may_be_given(name)

    def check_variables(self) -> None:
        """Refuse variables that the device policy does not allow, and a shell line that uses the variable of an input
        which cannot be set: the device policy does not list it, or the device has a variable of that name."""
        self.policy.variables(self.resolved.environment)
        super().check_variables()
        line = self.action.shell or ""
        for name in self.resolved.inputs:
            if task_inputs.refers_to_variable(line, name) and name not in self.resolved.environment:
                self.policy.counts_on(name)
                if name in os.environ and self.policy.passes(name):
                    raise DeviceUnavailable(
                        f"this device has a variable {name!r} of its own, which an input does not replace; "
                        f"{task_inputs.variable_advice(name)}"
                    )
