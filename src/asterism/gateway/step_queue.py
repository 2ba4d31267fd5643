"""A queue of steps for a gateway: those that come up while a message is under way leave together with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asterism.gateway.gateway_messages import LARGEST_MESSAGE, STEPS_AT_ONCE, parse_error

_Waiting = tuple[dict[str, Any], asyncio.Future[Any], int]


class StepQueue:
    """``ask`` sends a message with steps, and returns an answer for each."""

    def __init__(self, ask: Callable[[list[dict[str, Any]]], Awaitable[list[Any]]]) -> None:
        self._ask = ask
        self._waiting: list[_Waiting] = []
        self._sender: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()  # set when no message is under way
        self._answered.set()

    async def send(self, run_id: str, data: dict[str, Any], weight: int = 0) -> Any:
        """Send a step about a run, and return its answer. ``weight`` is how long its log and result are at most, in
        bytes. Raises what the answer says, and what ``ask`` raises."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((data, future, weight))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_waiting())
        answer = await future
        if "error" in answer:
            raise parse_error(answer, run_id)
        return answer

    async def answered(self) -> None:
        """Wait for the answer to the message that is under way, if there is one."""
        await self._answered.wait()  # once: others may follow without a break

    def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()

    async def _send_waiting(self) -> None:
        while self._waiting:
            batch: list[_Waiting] = []
            self._answered.clear()
            try:
                await asyncio.sleep(0)  # ends that come up together leave together
                count = self._fitting()
                batch, self._waiting = self._waiting[:count], self._waiting[count:]
                answers = await self._ask([data for data, *_ in batch])
                for (_, future, _), one in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(one)
            except asyncio.CancelledError:
                for _, future, _ in (*batch, *self._waiting):
                    future.cancel()
                raise
            except Exception as error:
                for _, future, _ in batch:
                    if not future.done():
                        future.set_exception(error)
                        future.exception()  # a caller that was cancelled does not retrieve it
            finally:
                self._answered.set()

    def _fitting(self) -> int:
        """How many of the steps that wait leave with the next message: at least one."""
        total = 0
        for number, (_, _, weight) in enumerate(self._waiting[:STEPS_AT_ONCE]):
            total += weight
            if number and total > LARGEST_MESSAGE:
                return number
        return min(len(self._waiting), STEPS_AT_ONCE)
