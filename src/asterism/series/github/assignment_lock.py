"""Whose turn it is to assign issues of a series.

The state of a series changes by compare-and-swap, but an assignment on GitHub has no condition: who decided to make one
and was then held up would make it after others have gone on, beside theirs. So all assignments of a series are made in
turn. A turn is a second ref, ``refs/asterism/turns/NAME``, taken by compare-and-swap and given back. Whoever has it
reads the state and the issues again before assigning anything.

Who dies with the turn in hand holds up the others until it runs out, by GitHub's clock. Who is alive stops well before
that, by its own clock, which goes on while the machine sleeps, counted from before it asked for the turn: it sends
nothing that could arrive late. What remains is a request that GitHub itself would carry out more than ``MARGIN``
seconds after its sender gave up waiting.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from asterism.series.compare_and_swap import Contended
from asterism.series.github.github_client import Refused
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.transport import TIMEOUT
from asterism.series.register import Moved, RateLimited, RegisterUnavailable, SeriesError, Unsure

LENGTH = 90.0
"""How long a turn may take, in seconds."""
MARGIN = 15.0
GIVING_BACK = 5
"""How often to try."""
GRACE = 2.0
"""GitHub's clock is known to the second."""


class NotMyTurn(SeriesError):
    """Another is assigning in this series just now."""


class TurnOver(SeriesError):
    """It took too long: others may be assigning by now. Nothing more was sent."""


class TurnsTaken(Contended):
    """Others had the turn for as long as one waited for it. The state is what it should be; nothing was assigned."""

    def __init__(self, name: str, tries: int, seconds: float) -> None:
        super().__init__(name, tries, seconds)
        long = f" for all of {seconds:.1f} s" if tries else ", which was not waited for"
        self.args = (
            f"others were assigning in series {name}{long}: what was decided stands, and this run has assigned "
            "nothing; the next one does",
        )


def awake_or_not() -> float:
    """Seconds that go on while the machine sleeps, where it can tell: GitHub's clock does too."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Turn:
    """One turn in hand."""

    def __init__(self, name: str, token: str, ends: float, clock: Callable[[], float]) -> None:
        self.name, self.token = name, token
        self._ends, self._clock = ends, clock

    def guard(self) -> None:
        """Raises TurnOver if a request that is sent now could arrive after the end."""
        if self._clock() + TIMEOUT + MARGIN > self._ends:
            raise TurnOver(f"the turn to assign in series {self.name} is over: it took too long")


class _Written(NamedTuple):
    holder: str | None
    until: float


class Turns:
    """The turns of all series of a repository."""

    def __init__(self, register: GitHubRegister, clock: Callable[[], float] = awake_or_not) -> None:
        self.register = GitHubRegister(register.client, "turns")
        self._clock = clock

    async def take(self, name: str) -> Turn:
        """Raises NotMyTurn if another has it, or was quicker."""
        holder = uuid.uuid4().hex
        seen = await self.register.read(name)
        if seen.token is not None:
            written = await self._written(seen.text or "", seen.token)
            if written.holder is not None and self.register.clock() < written.until + GRACE:
                raise NotMyTurn(f"another is assigning in series {name}")
        begun = self._clock()
        text = _text(name, holder, self.register.clock() + LENGTH)
        try:
            token = await self.register.swap(name, seen.token, text, f"a turn in {name}")
        except Moved:
            raise NotMyTurn(f"another was quicker to take the turn in series {name}") from None
        except Unsure:
            again = await self.register.read(name)
            if again.text != text or again.token is None:
                raise NotMyTurn(f"the turn in series {name} was not taken, or another has it") from None
            token = again.token
        return Turn(name, token, begun + LENGTH, self._clock)

    async def give_back(self, turn: Turn) -> None:
        """If it is ours still. A reply that was lost is looked after, for others wait. What cannot be given back runs
        out by itself."""
        text = _text(turn.name, None, 0.0)
        for _ in range(GIVING_BACK):
            try:
                await self.register.swap(turn.name, turn.token, text, f"the end of a turn in {turn.name}")
                return
            except (Moved, RateLimited):
                return
            except (Unsure, RegisterUnavailable):
                continue

    async def _written(self, text: str, token: str) -> _Written:
        """Something that nobody of ours wrote counts as a turn that began when it was committed."""
        try:
            data = json.loads(text)
            holder, until = data["holder"], float(data["until"])
            plausible = until <= self.register.clock() + LENGTH + GRACE
            if holder is None or (isinstance(holder, str) and plausible):
                return _Written(holder, until)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        try:
            commit = await self.register.client.get(f"git/commits/{token}")
            at = datetime.fromisoformat(commit["committer"]["date"]).timestamp()
        except (Refused, KeyError, TypeError, ValueError):
            return _Written(None, 0.0)  # not even a commit: no turn was ever that
        if at > self.register.clock() + LENGTH:
            return _Written(None, 0.0)  # a date that nobody can have written by now holds nobody up until then
        return _Written("somebody", at + LENGTH)


def _text(name: str, holder: str | None, until: float) -> str:
    return json.dumps({"series": name, "holder": holder, "until": round(until, 3)}) + "\n"
