"""The log of a device on standard error: a line for each run it starts, ends, refuses or loses.

The lines go through ``logging``, with the run as a field, so that programs can read them as JSON.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asterism.base.durations import format_age
from asterism.base.text import clean, json_text, short, shorten
from asterism.cli.cli_context import format_clock
from asterism.core.errors import DeviceTrouble, DeviceUnavailable
from asterism.core.json_values import JsonObject
from asterism.core.run.outcomes import attempt_of
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.executor import Executor, RunWork
from asterism.fleet.policy.device_policy import PolicyForbids

log = logging.getLogger("asterism.device")

LONGEST = 300
FIELDS = ("run", "workflow", "device")


class LoggingExecutor:
    """An executor that logs what it does. ``stopping`` returns why the execution of a run is being stopped."""

    def __init__(self, executor: Executor, stopping: Callable[[str], str | None]) -> None:
        self._executor, self._stopping = executor, stopping
        self.started = 0

    def objection(self, workflow: Workflow) -> str | None:
        return self._executor.objection(workflow)

    def check(self, workflow: Workflow, run_input: Any) -> str | None:
        return self._executor.check(workflow, run_input)

    def judges_each(self, workflow: Workflow, run_input: Any) -> bool:
        return self._executor.judges_each(workflow, run_input)

    async def probe(self) -> None:
        await self._executor.probe()

    def allow(self, run_id: str, seconds: float) -> None:
        self._executor.allow(run_id, seconds)

    def close(self) -> None:
        self._executor.close()

    async def execute(self, work: RunWork) -> Any:
        run, began = work.run, time.monotonic()
        fields = {"run": run.id, "workflow": run.workflow}
        name = f"run {short(run.id)} ({run.workflow})"
        attempt = attempt_of(run)
        again = f", attempt {attempt}" if attempt > 1 else ""
        log.info("started %s%s", name, again, extra=fields)
        self.started += 1
        try:
            value = await self._executor.execute(work)
        except asyncio.CancelledError:
            log.info("stopped %s after %s: %s", name, _since(began), self._stopping(run.id) or "", extra=fields)
            raise
        except (PolicyForbids, DeviceUnavailable) as error:
            log.warning("refused %s: %s", name, error, extra=fields)
            raise
        except DeviceTrouble as error:
            log.warning("lost %s after %s: %s", name, _since(began), error, extra=fields)
            raise
        except Exception as error:
            why = shorten(f"{type(error).__name__}: {error}", LONGEST)
            log.warning("failed %s after %s: %s", name, _since(began), why, extra=fields)
            raise
        log.info("finished %s after %s", name, _since(began), extra=fields)
        return value


def _since(began: float) -> str:
    return format_age(time.monotonic() - began)


class _TextFormatter(logging.Formatter):
    """``14:05:09  started run k3v9x2ma (transcode)``."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        run = getattr(record, "run", None)
        if isinstance(run, str) and short(run) not in text:
            text = f"run {short(run)}: {text}"
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]!r}"
        return f"{format_clock(record.created)}  {clean(text)}"


class _JsonFormatter(logging.Formatter):
    """The same as JSON, one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: JsonObject = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: getattr(record, name) for name in FIELDS if isinstance(getattr(record, name, None), str)}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = repr(record.exc_info[1])
        return json_text(fields)


@contextmanager
def log_to_stderr(*, as_json: bool) -> Iterator[None]:
    """Print the log of Asterism to standard error while the block runs."""
    logger = logging.getLogger("asterism")
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
