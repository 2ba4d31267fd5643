"""Inputs of a run: references and secrets, filled into the command, environment or request of its work.

The input of a run is data. The one exception is ``{"secret": NAME}`` as the whole of a named value. A value that merely
looks like that, such as the result of another task, is given as ``{"$literal": …}``. ``{"files_from": …, "manifests":
[…]}`` stands for files of another task. In ``env`` and ``http`` of the work, ``{"from": NAME, "select": …}`` refers
to an input of the run and ``{"secret": NAME}`` to a variable of the device. All secrets are collected, after the device
policy has allowed each of them, before anything is evaluated: every later error message is masked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from asterism.base.secret_mask import Mask, secret_names
from asterism.core.errors import DeviceUnavailable, safe_repr
from asterism.core.json_values import JsonObject
from asterism.core.plan.task_files import FILES_FROM, is_content_name, read_reference
from asterism.core.run.work import Work
from asterism.execution.plugin_actions import plugin_secrets
from asterism.execution.task_inputs import MissingInput, References, ResolvedInputs, is_secret
from asterism.execution.working_folder import InputFiles

if TYPE_CHECKING:
    from asterism.fleet.policy.device_policy import DevicePolicy

CONSTANTS = frozenset({str, int, float, bool, type(None), list})
"""Types whose values never hold a reference."""

_LITERAL = "$literal"

MANIFESTS = "manifests"
"""An input ``{"files_from": …, "manifests": […]}`` stands for files: the output of a task, in its manifest, or in those
of the elements of a group."""


def secrets_of(work: Work, run_input: Any, policy: DevicePolicy) -> frozenset[str]:
    """The names of the secrets that a run refers to; the device policy allows all of them, and the device has them.
    Evaluates nothing. Raises PolicyForbids, and DeviceUnavailable for a secret that this device does not have."""
    if work.http is None and work.plugin is None and stands_for_itself(work, run_input):
        return frozenset()
    policy.plugin(work.plugin)  # before it is imported
    names = frozenset(_secret_names(work, run_input))
    for name in sorted(names):
        policy.secret(name)
        if name not in os.environ:
            raise DeviceUnavailable(f"the environment of this device has no secret {name!r}")
    return names


def _secret_names(work: Work, run_input: Any) -> Iterator[str]:
    yield from secret_names([work.env, work.http])
    yield from plugin_secrets(work.plugin)
    for value in run_input.values() if isinstance(run_input, Mapping) else ():
        if is_secret(value):
            if not isinstance(value["secret"], str):
                raise MissingInput(f"the name of a secret must be text, not {safe_repr(value['secret'])}")
            yield value["secret"]


def fill(work: Work, run_input: Any, mask: Mask) -> ResolvedInputs:
    """The inputs and variables of one run, with its secrets from ``mask``. Raises MissingInput, and what an expression
    raises: call it under the mask."""
    if stands_for_itself(work, run_input):
        return ResolvedInputs(dict(run_input), {}, mask)  # the usual case, on the hot path of every run
    if not isinstance(run_input, Mapping):
        raise MissingInput(f"the input of a run must be an object of named values, not {safe_repr(run_input)}")
    secrets = RunReferences({}, mask)
    values = {name: secrets.fill(value) if is_secret(value) else _bare(value) for name, value in run_input.items()}
    return ResolvedInputs(values, RunReferences(values, mask).environment(work.env), mask)


class RunReferences(References):
    """References of a workflow: to inputs of the run, and to secrets of the device."""

    def no_secret(self, where: str, name: Any) -> str:
        return f"the name of a secret must be text, not {safe_repr(name)}"

    def no_value(self, where: str, name: Any) -> str:
        return f"the workflow refers to the input {safe_repr(name)}, which the run does not have"


def stands_for_itself(work: Work, run_input: Any) -> bool:
    """Whether neither the input nor the variables of the workflow hold a reference."""
    return type(run_input) is dict and not work.env and CONSTANTS.issuperset(map(type, run_input.values()))


def is_files(value: Any) -> bool:
    """Whether an input of a run stands for files that another task has made."""
    return isinstance(value, Mapping) and set(value) == {FILES_FROM, MANIFESTS} and type(value[MANIFESTS]) is list


def files_of(run_input: Mapping[str, Any]) -> dict[str, InputFiles]:
    """The inputs of a run that stand for files, by name. Raises MissingInput for one that names none."""
    files = {}
    for name, value in run_input.items():
        if is_files(value):
            reference, manifests = read_reference(value), manifests_in(value)
            if reference is None or len(manifests) != len(value[MANIFESTS]):
                raise MissingInput(f"input {name!r} names no files")
            files[name] = InputFiles(manifests, reference.output)
    return files


def manifests_in(value: Any) -> tuple[str, ...]:
    """The manifests in an input of a run that stands for files."""
    manifests = value[MANIFESTS] if is_files(value) else ()
    return tuple(name for name in manifests if isinstance(name, str) and is_content_name(name))


def literal(value: Any) -> Any:
    """A value as an input of a run that is taken as it is, even if it looks like a reference."""
    if type(value) in CONSTANTS:
        return value
    return {_LITERAL: value} if is_secret(value) or is_files(value) or _is_literal(value) else value


def bare(run_input: Mapping[str, Any]) -> JsonObject:
    """An input as the work reads it, without the ``$literal`` marks."""
    return {name: _bare(value) for name, value in run_input.items()}


def _bare(value: Any) -> Any:
    return value[_LITERAL] if _is_literal(value) else value


def _is_literal(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {_LITERAL}
