"""Devices: what executes. A device is anything with an id, capabilities, slots and ``execute``."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import CoroutineType
from typing import Any, Protocol, runtime_checkable

from asterism.base import function_calls, task_inputs
from asterism.base.expressions import Selections
from asterism.base.http_requests import send_request
from asterism.base.processes import Commands
from asterism.base.secret_mask import Mask, environment_mask, secrets_of_task
from asterism.core.json_values import plain_json
from asterism.core.plan.task import NOTHING, Task

log = logging.getLogger("asterism.device")


class Work:
    """One execution, as a device gets it. ``results`` holds what the tasks it depends on returned."""

    __slots__ = ("attempt", "constellation", "epoch", "results", "task")

    def __init__(self, task: Task, constellation: str, epoch: int, attempt: int, results: Mapping[str, Any]) -> None:
        self.task, self.constellation, self.epoch, self.attempt, self.results = (
            task,
            constellation,
            epoch,
            attempt,
            results,
        )


@runtime_checkable
class Device(Protocol):
    """``execute`` returns the result or raises. DeviceUnavailable means that nothing was begun, DeviceLost that
    nobody knows how it ended. ``slots`` is how much it does at once, None for no limit."""

    @property
    def id(self) -> str: ...
    @property
    def can(self) -> frozenset[str]: ...
    @property
    def slots(self) -> int | None: ...

    async def execute(self, work: Work) -> Any: ...


class LocalDevice:
    """This process as a device: coroutines on the loop, plain functions in threads, commands as child processes.

    ``run`` replaces all of that for tasks that carry no action of their own: it is called with the Work. With
    ``json_results`` a result that is not JSON fails its task, as it would on a device that has to send it."""

    def __init__(
        self,
        id: str,
        slots: int | None = None,
        can: Iterable[str] = (),
        *,
        run: Callable[[Work], Any] | None = None,
        json_results: bool = False,
        grace: float = 5.0,
    ) -> None:
        if slots is not None and slots < 1:
            raise ValueError(f"device {id!r}: slots is 1 or more, or None for no limit, not {slots}")
        self.id, self.slots, self.can = id, slots, frozenset(can)
        self.json_results = json_results
        self._run = run
        self._read: set[str] = set()  # the secrets that tasks have asked for
        self._warned: set[str] = set()
        self._commands = Commands(grace)

    def __repr__(self) -> str:
        return f"LocalDevice({self.id!r}, slots={self.slots}, can={sorted(self.can)})"

    async def execute(self, work: Work) -> Any:
        task = work.task
        simple = task.call is not None and not task.inputs and not task.env
        value = await (self._call(work, NOTHING) if simple else self._with_inputs(work))
        if type(value) is CoroutineType:  # a plain function that made a coroutine, such as a lambda
            value = await value
        return plain_json(value, f"the result of task {task.id!r}") if self.json_results else value

    async def _with_inputs(self, work: Work) -> Any:
        task = work.task
        names = secrets_of_task(task)
        self._read |= names
        with environment_mask(names, self._read.__contains__) as mask:
            self._warn(mask)
            select = Selections()
            resolved = task_inputs.resolve_inputs(task.inputs, task.env, work.results, mask, select)
            if task.argv is not None:
                argv = [task_inputs.fill_template(word, resolved.inputs) for word in task.argv]
                return await self._commands.run(argv, _environment(work, resolved), task.cwd)
            if task.shell is not None:
                return await self._commands.run(["/bin/sh", "-c", task.shell], _environment(work, resolved), task.cwd)
            if task.http is not None:
                terms = task_inputs.fill_references(dict(task.http), work.results, mask, select)
                terms["url"] = task_inputs.fill_template(terms["url"], resolved.inputs, task_inputs.url_quoted)
                return await send_request(terms, mask)
            return await self._call(work, resolved.inputs)

    def _warn(self, mask: Mask) -> None:
        """Of each secret that is too short to be masked everywhere, once."""
        for warning in mask.warnings():
            if warning not in self._warned:
                self._warned.add(warning)
                log.warning("%s", warning)

    def _call(self, work: Work, given: Mapping[str, Any]) -> Awaitable[Any]:
        call = work.task.call
        if call is None:
            return _finished(self._run(work) if self._run is not None else None)
        if isinstance(call, str):
            call = function_calls.load_function(call)
        signature = function_calls.signature(call)
        arguments = signature.arguments(work.task.id, work.results, given) if signature.takes_anything else {}
        return call(**arguments) if signature.asynchronous else function_calls.call_in_thread(call, arguments)

    def close(self) -> None:
        """End what was started to look after child processes."""
        self._commands.close()


async def _finished(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


def _environment(work: Work, resolved: task_inputs.ResolvedInputs) -> dict[str, str]:
    """What a command sees: our environment, its own variables, its inputs, and who it is."""
    own = {
        "ASTERISM_CONSTELLATION": work.constellation,
        "ASTERISM_TASK": work.task.id,
        "ASTERISM_EPOCH": str(work.epoch),
    }
    line = work.task.shell or ""
    task_inputs.check_shell_line(line, resolved.inputs, resolved.environment)
    bare = dict(task_inputs.bare_variables(resolved.inputs, lambda name: task_inputs.mentions_name(line, name)))
    return {
        **os.environ,
        **bare,
        **resolved.environment,
        **dict(task_inputs.prefixed_variables(resolved.inputs)),
        **own,
    }
