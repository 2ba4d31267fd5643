"""The conformance suite for registers of series: what each promises, as tests for pytest.

::

    from tests.laboratory.register_conformance import ProcessOpener, RegisterConformance


    class TestMyRegister(RegisterConformance):
        async def open_register(self):             # a fresh, empty register; a test may open several
            return MyRegister(tempfile.mkdtemp())

        async def open_another(self, register):    # a second connection to the same register
            return MyRegister(register.path)

        async def process_opener(self, register):  # how another process opens it; None if none can
            return ProcessOpener("my_tests:open_my_register", register.path)

The tests run their own event loops and need no plugin. They close what they opened.

``FaultyRegister`` wraps a register, and fails as a test schedules.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import random
import sys
from collections import deque
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from asterism.core.series.machine import Series, UnreadableSeries
from asterism.series.claims import Claim, claim
from asterism.series.compare_and_swap import RetryOptions, update
from asterism.series.register import (
    BadSeriesName,
    OutcomeUnknown,
    RegisterBusy,
    RegisterOver,
    RevisionConflict,
    SeriesRegister,
    Snapshot,
    read_all,
)
from tests.laboratory.conformance import AsyncTest, AsyncTests, ProcessOpener

NAME = "RFC-093"
EAGER = RetryOptions(deadline=None, jitter=(0.001, 0.05), chance=random.Random(93))
ODD_NAMES = (
    "RFC-093", "rfc-094", "a/b", "a%2Fb", "two words", "..", "a..b", ".hidden", "end.", "x.lock", "-rf", "@{1}",
    "~^:?*[\\", "größe", "系列", "a/b/c.d_e",
)  # fmt: skip
"""Valid names, which every register must distinguish."""

BAD_NAMES = ("", " ", " x", "x ", "a\nb", "a\0b", "a\tb", "x" * 300, "\ud800")


class FaultyRegister(RegisterOver):
    """A register over another one. Each read takes the next item of ``reads``, each swap the next of ``swaps``:

    - None: it succeeds.
    - ``"before"``: the reply to the swap is lost, and it did not happen.
    - ``"after"``: the reply to the swap is lost, and it happened.
    - An exception is raised.
    - A function is called first, as another writer that comes in between.
    """

    def __init__(self, register: SeriesRegister) -> None:
        super().__init__(register)
        self.reads: deque[Any] = deque()
        self.swaps: deque[Any] = deque()
        self.swapped = 0

    async def read(self, name: str) -> Snapshot:
        await _happens(self.reads.popleft() if self.reads else None)
        return await super().read(name)

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        fault = self.swaps.popleft() if self.swaps else None
        if fault == "before":
            raise OutcomeUnknown(f"whether series {name} was changed is not known: the reply was lost")
        if fault != "after":
            await _happens(fault)
        token = await super().swap(name, expected, text, message)
        self.swapped += 1
        if fault == "after":
            raise OutcomeUnknown(f"whether series {name} was changed is not known: the reply was lost")
        return token


async def _happens(fault: Any) -> None:
    if isinstance(fault, BaseException):
        raise fault
    if fault is not None:
        await fault()


async def _refused(attempt: Coroutine[Any, Any, Any], kind: type[Exception]) -> None:
    try:
        await attempt
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def _same(actual: object, wanted: object, what: str = "") -> None:
    if actual != wanted:
        raise AssertionError(f"{what or 'it'} is {actual!r}, not {wanted!r}")


class RegisterConformance(AsyncTests):
    """What every register promises. Override ``open_register`` and ``open_another``; and ``process_opener``, if other
    processes can open it."""

    processes = 3
    """How many processes race."""

    async def open_register(self) -> SeriesRegister:
        raise NotImplementedError(f"{type(self).__name__} does not say how to open a register: override open_register")

    async def open_another(self, register: SeriesRegister) -> SeriesRegister:
        raise NotImplementedError(
            f"{type(self).__name__} does not say how to open another connection: override open_another"
        )

    async def process_opener(self, register: SeriesRegister) -> ProcessOpener | None:
        return None

    async def run_test(self, test: AsyncTest) -> None:
        """A test with the parameter ``other`` gets a second connection to its register."""
        async with AsyncExitStack() as closing:
            register = await self.open_register()
            closing.push_async_callback(register.close)
            if "other" not in inspect.signature(test).parameters:
                await test(self, register)
                return
            other = await self.open_another(register)
            closing.push_async_callback(other.close)
            await test(self, register, other)

    # -- sequential ----------------------------------------------------------------------------------------------------

    async def test_a_new_register_is_empty(self, register: SeriesRegister) -> None:
        _same(await register.read(NAME), Snapshot(None, None))
        _same(await register.names(), [])
        _same(await read_all(register), {})
        _same(await register.history(NAME, 5), [])

    async def test_a_written_text_is_read(self, register: SeriesRegister, other: SeriesRegister) -> None:
        token = await register.swap(NAME, None, "one", "the first")
        _same(await other.read(NAME), Snapshot("one", token))
        token = await other.swap(NAME, token, "two", "the second")
        _same(await register.read(NAME), Snapshot("two", token))
        _same(await register.names(), [NAME])

    async def test_there_is_one_first_write(self, register: SeriesRegister, other: SeriesRegister) -> None:
        _same((await other.read(NAME)).token, None)
        await register.swap(NAME, None, "ours", "first")
        await _refused(other.swap(NAME, None, "theirs", "first too"), RevisionConflict)
        _same((await register.read(NAME)).text, "ours")

    async def test_a_lost_update_is_refused(self, register: SeriesRegister, other: SeriesRegister) -> None:
        token = await register.swap(NAME, None, "zero", "m")
        _same((await other.read(NAME)).token, token)
        newer = await register.swap(NAME, token, "one", "m")
        await _refused(other.swap(NAME, token, "two", "m"), RevisionConflict)
        _same(await other.read(NAME), Snapshot("one", newer))

    async def test_the_same_text_twice_is_two_states(self, register: SeriesRegister, other: SeriesRegister) -> None:
        """Two writers write the same text at the same moment: one succeeds, and the other gets a conflict."""
        token = await register.swap(NAME, None, "zero", "m")
        await other.read(NAME)
        first = await register.swap(NAME, token, "same", "the same message")
        await _refused(other.swap(NAME, token, "same", "the same message"), RevisionConflict)
        second = await register.swap(NAME, first, "same", "the same message")
        _same(len({token, first, second}), 3, "the number of tokens")

    async def test_a_text_that_comes_back_is_a_new_state(self, register: SeriesRegister, other: SeriesRegister) -> None:
        old = await register.swap(NAME, None, "a", "m")
        await other.read(NAME)
        between = await register.swap(NAME, old, "b", "m")
        await register.swap(NAME, between, "a", "m")
        await _refused(other.swap(NAME, old, "c", "m"), RevisionConflict)

    async def test_any_text_is_stored_unchanged(self, register: SeriesRegister) -> None:
        """Also text that is not a state of a series: repairing it requires reading it."""
        token = None
        for text in ("{", "", "\n", "null", "größe 系列\r\n", json.dumps({"n": [1] * 20_000})):
            token = await register.swap(NAME, token, text, "m")
            _same(await register.read(NAME), Snapshot(text, token))

    async def test_series_are_distinguished_by_name(self, register: SeriesRegister) -> None:
        tokens = {name: await register.swap(name, None, f"text of {name}", "m") for name in ODD_NAMES}
        for name, token in tokens.items():
            _same(await register.read(name), Snapshot(f"text of {name}", token))
        _same(await register.names(), sorted(ODD_NAMES))
        everything = {name: Snapshot(f"text of {name}", tokens[name]) for name in sorted(ODD_NAMES)}
        _same(await read_all(register), everything, "the result of read_all")

    async def test_an_invalid_name_is_refused(self, register: SeriesRegister) -> None:
        for name in BAD_NAMES:
            await _refused(register.read(name), BadSeriesName)
            await _refused(register.swap(name, None, "x", "m"), BadSeriesName)
            await _refused(register.history(name, 1), BadSeriesName)
        _same(await register.names(), [])

    async def test_the_history_is_what_was_written(self, register: SeriesRegister, other: SeriesRegister) -> None:
        token = await register.swap(NAME, None, "0", "the first")
        tokens = [token]
        for number in range(1, 5):
            await other.read(NAME)
            tokens.append(await register.swap(NAME, tokens[-1], str(number), f"change {number}\n\nin two parts"))
            await _refused(other.swap(NAME, tokens[-2], "lost", "never happened"), RevisionConflict)
        history = await other.history(NAME, 10)
        _same([revision.text for revision in history], ["4", "3", "2", "1", "0"], "the history")
        _same([revision.token for revision in history], tokens[::-1], "the tokens")
        _same(history[0].message, "change 4\n\nin two parts")
        _same(history[-1].message, "the first")
        times = [revision.at for revision in history]
        _same(sorted(times), times[::-1], "the order of the times")
        _same([revision.text for revision in await register.history(NAME, 2)], ["4", "3"], "the last two")

    # -- concurrent ----------------------------------------------------------------------------------------------------

    async def test_one_of_many_concurrent_swaps_succeeds(self, register: SeriesRegister, other: SeriesRegister) -> None:
        token = await register.swap(NAME, None, "zero", "m")
        await other.read(NAME)
        answers = await asyncio.gather(
            *(client.swap(NAME, token, f"text {place}", "m") for place, client in enumerate((register, other) * 4)),
            return_exceptions=True,
        )
        won = [(place, answer) for place, answer in enumerate(answers) if isinstance(answer, str)]
        _same(len(won), 1, "the number of winners")
        # the others got a conflict, or the register was busy
        lost = [answer for answer in answers if not isinstance(answer, str | RevisionConflict | RegisterBusy)]
        _same(lost, [], "the errors of the others")
        [(place, token)] = won
        _same(await register.read(NAME), Snapshot(f"text {place}", token))

    async def test_racing_processes_lose_no_claim(self, register: SeriesRegister) -> None:
        opener = await self.process_opener(register)
        if opener is None:
            return
        each = 4
        racing = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-W", "error", "-c", _RACER, *opener, str(1 + place * each), str(each)),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
            )
            for place in range(self.processes)
        ]
        _same([await process.wait() for process in racing], [0] * self.processes, "the exit codes")
        series = Series.from_text((await register.read(NAME)).text, NAME)
        claims = sorted(item for item in (series.active, *series.queue) if isinstance(item, int))
        _same(claims, list(range(1, self.processes * each + 1)), "the claims")
        _same(series.revision, self.processes * each)

    # -- with the update loop ------------------------------------------------------------------------------------------

    async def test_a_writer_whose_reply_was_lost_finds_out_that_it_succeeded(self, register: SeriesRegister) -> None:
        faulty = FaultyRegister(register)
        faulty.swaps += ["after", None]
        outcome = await claim(faulty, NAME, wanted := Claim(7, "ann"), retry=EAGER)
        _same((outcome.after.active, outcome.after.claim_id), (7, wanted.id))
        _same(faulty.swapped, 1, "the number of swaps")

    async def test_a_writer_whose_reply_was_lost_and_that_failed_tries_again(self, register: SeriesRegister) -> None:
        faulty = FaultyRegister(register)

        async def another_writer() -> None:
            await claim(register, NAME, Claim(1), retry=EAGER)

        faulty.swaps += ["before", another_writer, None]
        outcome = await claim(faulty, NAME, Claim(7), retry=EAGER)
        _same((outcome.after.active, outcome.after.queue), (1, (7,)))

    async def test_an_unreadable_state_is_not_replaced_until_it_is_repaired(self, register: SeriesRegister) -> None:
        token = await register.swap(NAME, None, '{"active_issue": 7, "version": 99}', "by hand")
        await _refused(claim(register, NAME, Claim(8), retry=EAGER), UnreadableSeries)
        _same((await register.read(NAME)).token, token)
        outcome = await update(register, NAME, lambda series, now: series, "mended", retry=EAGER, repair=True)
        _same(outcome.after.active, 7)
        outcome = await update(register, NAME, Claim(8), "m", retry=EAGER)
        _same((outcome.after.active, outcome.after.queue), (7, (8,)))


_RACER = """
import asyncio, sys
from tests.laboratory.register_conformance import race
opener, address, first, number = sys.argv[1:]
asyncio.run(race(opener, address, int(first), int(number)))
"""


async def race(opener: str, address: str, first: int, number: int) -> None:
    """The job of a racing process: it claims one item after the other."""
    module, _, function = opener.partition(":")
    register = await getattr(importlib.import_module(module), function)(address)
    try:
        for item in range(first, first + number):
            await claim(register, NAME, Claim(item), retry=RetryOptions(deadline=None, jitter=(0.001, 0.05)))
    finally:
        await register.close()


__all__ = ["FaultyRegister", "ProcessOpener", "RegisterConformance", "race"]
