"""Limits: how much may be used at a time, and how often, by the runs of all plans, schedules and people of a store.

A limit has a size (``warehouse``, 4), a rate (``mail``, 10 a minute), or both. A run says what it uses, such as
``{"warehouse": 1}``, and begins when all of it is free. ``account/*`` is a limit for each name that begins with
``account/``: 4 for ``account/7``, and another 4 for ``account/8``.

*Who holds a limit*: a run that a device owns holds what it uses; that is recorded nowhere else. So its end, its loss
and every other end of its grant free the limit in the same commit, and nothing can leak. What is no run, such as a task
that the process of a plan does itself, has a ``Hold``. A use is granted by
``LimitBook`` alone: the book is made of what is read from the store, and the commit of the grant also writes the
accounts of its limits, each in place of the revision that was read before the holders. So of two processes that grant
at the same moment, one meets a conflict and reads again.

*Fair turns.* The most urgent go first. Among equals it is the turn of the plan (or batch, or workflow) that was served
longest ago, and within that the oldest run goes first: a plan with ten thousand tasks does not starve one with three.
A run for which only one limit has too little room keeps the rest of that limit free, so that many small ones do not
starve a large one. One that waits for several limits keeps nothing: it would keep others from work for nothing.

*A series* of runs is a limit of 1, one of ``series/*``: its runs begin one at a time, in the order of their ids, and
none begins while an older one waits, whatever their priorities. It is there without being set.

*A rate* counts what begins within any period of its length: never more than its number. Times are counted in parts of
the period, and a part counts until all of it is older than the period.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from math import floor, inf
from typing import Any, NamedTuple
from urllib.parse import quote

from asterism.core.errors import AsterismError, safe_repr
from asterism.core.json_values import NOTHING, JsonObject
from asterism.core.record import Record, Struct, decode, field

EACH = "/*"
"""The end of the name of a limit for each name that begins with the part before the star."""

SERIES = "series/"
"""How the names of the limits of series begin."""

LARGEST = 1_000_000
LONGEST_NAME = 200
LONGEST_PERIOD = 366 * 86_400.0
MOST_USED = 20
"""How many limits one run may use."""

PARTS = 60
"""In how many parts the period of a rate is counted."""

TURNS_REMEMBERED = 200
"""How many plans an account remembers as served. One that is forgotten counts as never served: it goes first."""


class InvalidLimit(AsterismError, ValueError):
    """A limit, or a use of one, with values that cannot be used."""


class UnknownLimit(AsterismError):
    """A run uses a limit that nobody has set."""

    def __init__(self, name: str) -> None:
        self.name = name
        prefix, slash, _ = name.partition("/")
        each = f", or one for each name below it: asterism limit set '{prefix}{EACH}' 1" if slash else ""
        super().__init__(f"no limit {name!r} is set. Set it with: asterism limit set '{name}' 1{each}")


class Rate(NamedTuple):
    """At most ``number`` within ``period`` seconds."""

    number: int
    period: float


class Limit(Record, omit_defaults=True):
    """``size`` is how much may be in use at a time, ``rate`` how much may begin; None for no limit of that kind."""

    name: str
    size: int | None = None
    rate: Rate | None = None

    def __post_init__(self) -> None:
        problem = limit_name_problem(self.name.removesuffix(EACH) if isinstance(self.name, str) else self.name)
        if problem is not None:
            raise InvalidLimit(problem)
        if self.size is None and self.rate is None:
            raise InvalidLimit(f"limit {self.name!r} needs a size, a rate, or both")
        if self.size is not None and not _is_number(self.size, least=0):
            raise InvalidLimit(f"the size of limit {self.name!r} is a whole number from 0 to {LARGEST:,}")
        if self.rate is not None and not _is_rate(self.rate):
            raise InvalidLimit(f"the rate of limit {self.name!r} is a whole number from 1 to {LARGEST:,} and a period")

    @property
    def most(self) -> float:
        """How much one run may use."""
        return min(inf if self.size is None else self.size, inf if self.rate is None else self.rate.number)


def series_limit(series: str) -> str:
    """The name of the limit of a series of runs."""
    name = f"{SERIES}{quote(series, safe=':@,=+')}"
    return name if len(name) <= LONGEST_NAME else f"{SERIES}{sha256(series.encode()).hexdigest()}"


def limit_name_problem(name: object) -> str | None:
    """Why something is no name of a limit; None if it is one."""
    plain = isinstance(name, str) and name.isprintable() and not set(name) & set(" *{}'\"")
    if plain and 0 < len(str(name)) <= LONGEST_NAME and not str(name).startswith("/") and not str(name).endswith("/"):
        return None
    return (
        f"{safe_repr(name)} is not a name of a limit (examples: warehouse, account/7): 1 to {LONGEST_NAME} printable "
        "characters without spaces, quotation marks, braces and stars; '/' neither first nor last"
    )


def _is_number(value: object, *, least: int) -> bool:
    return type(value) is int and least <= value <= LARGEST


def _is_rate(rate: Rate) -> bool:
    period = rate.period
    known = isinstance(period, int | float) and not isinstance(period, bool)
    return _is_number(rate.number, least=1) and known and 0.1 <= period <= LONGEST_PERIOD


SERIES_LIMIT = Limit(f"{SERIES}*", 1)


def limit_for(limits: Mapping[str, Limit], name: str) -> Limit | None:
    """The limit that counts for a name: its own, else the one for each name below the longest part of it."""
    if name in limits:
        return limits[name]
    above = name
    while "/" in above:
        above = above.rpartition("/")[0]
        if (each := limits.get(above + EACH)) is not None:
            return each
    return None


# -- what a run uses ---------------------------------------------------------------------------------------------------


def uses_text(uses: Mapping[str, Any]) -> str | None:
    """What a run uses as text, as its record has it: equal uses are equal texts. None for nothing. Raises
    InvalidLimit."""
    if not uses:
        return None
    if len(uses) > MOST_USED:
        raise InvalidLimit(f"a run uses at most {MOST_USED} limits, not {len(uses)}")
    for name, amount in uses.items():
        problem = limit_name_problem(name)
        if problem is not None:
            raise InvalidLimit(problem)
        if not _is_number(amount, least=1):
            raise InvalidLimit(f"a run uses a whole number of {name!r} from 1 to {LARGEST:,}, not {safe_repr(amount)}")
    return json.dumps(dict(sorted(uses.items())), separators=(",", ":"))


@lru_cache(20_000)
def uses_of(text: str | None) -> Mapping[str, int]:
    """The names and amounts in such a text. Raises ValueError for any other text."""
    if text is None:
        return NOTHING
    try:
        uses = json.loads(text)
    except RecursionError:
        uses = None
    if not isinstance(uses, dict) or uses_text(uses) != text:
        raise ValueError(f"not what a run uses: {text[:80]!r}")
    return uses


def with_series(uses: str | None, series: str | None) -> str | None:
    """What a run of a series uses, with the limit of that."""
    return uses if series is None else uses_text({**uses_of(uses), series_limit(series): 1})


def uses_problems(uses: Mapping[str, Any]) -> list[str]:
    """What is wrong with the ``uses`` of a task or workflow, whose names may have placeholders in braces."""
    problems = [] if len(uses) <= MOST_USED else [f"uses names at most {MOST_USED} limits, not {len(uses)}"]
    for name, amount in uses.items():
        if not (isinstance(name, str) and "{" in name) and (problem := limit_name_problem(name)) is not None:
            problems.append(f"uses: {problem}")
        elif not _is_number(amount, least=1):
            problems.append(f"uses: a whole number of {name!r} from 1 to {LARGEST:,}, not {safe_repr(amount)}")
    return problems


def check_uses(limits: Mapping[str, Limit], uses: Mapping[str, int]) -> None:
    """Raise UnknownLimit for a name without a limit, and InvalidLimit for more than a limit ever allows."""
    for name, amount in uses.items():
        limit = limit_for(limits, name)
        if limit is None:
            raise UnknownLimit(name)
        if amount > limit.most and limit.size != 0:  # a limit of 0 is a pause
            raise InvalidLimit(f"a run cannot use {amount} of {name!r}: limit {limit.name!r} allows {limit.most:g}")


# -- the account of a limit --------------------------------------------------------------------------------------------


class Account(Struct):
    """What is remembered of a limit besides the runs that hold it: ``turns`` are the plans that were served, the last
    one last; ``begun`` counts, for each name, what began in each part of the period of its rate."""

    turns: list[str] = field(default_factory=list)
    begun: dict[str, dict[int, int]] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        begun = {name: sorted(parts.items()) for name, parts in self.begun.items() if parts}
        return {"turns": self.turns, "begun": begun}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Account:
        turns = decode(list[str], data["turns"])
        begun = decode(dict[str, list[tuple[int, int]]], data["begun"])
        return cls(turns, {name: dict(parts) for name, parts in begun.items()})

    def serve(self, turn: str) -> None:
        """It was the turn of a plan."""
        if turn in self.turns:
            self.turns.remove(turn)
        self.turns = [*self.turns, turn][-TURNS_REMEMBERED:]

    def begin(self, name: str, amount: int, rate: Rate, now: float) -> None:
        """Count a beginning."""
        for other in list(self.begun):
            self.begun[other] = _counting(self.begun[other], rate, now)
            if not self.begun[other]:
                del self.begun[other]
        parts = self.begun.setdefault(name, {})
        part = _part(now, rate)
        parts[part] = parts.get(part, 0) + amount

    def rewind(self, rate: Rate, now: float) -> bool:
        """Count what has begun in the future as begun now: the clock was set back. Returns whether there was any."""
        current = _part(now, rate)
        late = any(part > current + 1 for parts in self.begun.values() for part in parts)
        if late:
            self.begun = {name: _counting(parts, rate, now) for name, parts in self.begun.items()}
        return late

    def recount(self, old: Rate | None, new: Rate | None, now: float) -> None:
        """The rate has changed. If its period has, what has begun within the old one counts as begun now."""
        if new is None or old is None:
            self.begun = {}
        elif new.period != old.period:
            counts = {name: sum(_counting(parts, old, now).values()) for name, parts in self.begun.items()}
            self.begun = {name: {_part(now, new): count} for name, count in counts.items() if count}

    def room(self, name: str, rate: Rate, now: float) -> int:
        """How much may begin now."""
        return rate.number - sum(_counting(self.begun.get(name, {}), rate, now).values())

    def free_at(self, name: str, amount: int, rate: Rate, now: float) -> float:
        """When so much may begin, if nothing else begins before."""
        left, parts = self.room(name, rate, now), _counting(self.begun.get(name, {}), rate, now)
        at = now
        for part in sorted(parts):
            if left >= amount:
                break
            left, at = left + parts[part], _counts_until(part, rate)
        return at


def _part(now: float, rate: Rate) -> int:
    return floor(now * PARTS / rate.period)


def _counts_until(part: int, rate: Rate) -> float:
    """A time at which no beginning in a part is within the period any more."""
    return (part + 1 + PARTS) * rate.period / PARTS


def _counting(parts: Mapping[int, int], rate: Rate, now: float) -> dict[int, int]:
    """The parts that count at a time. A part in the future was written before the clock was set back, or with another
    period: it counts as now."""
    current, counting = _part(now, rate), dict[int, int]()
    for part, count in parts.items():
        if current <= part + PARTS:
            part = min(part, current)
            counting[part] = counting.get(part, 0) + count
    return counting


# -- judging -----------------------------------------------------------------------------------------------------------


class LimitedRuns(NamedTuple):
    """Runs that have not ended and use the same of limits: those that are ``waiting``, or those that a device owns.
    ``uses`` is as in their records, ``first`` the lowest id."""

    uses: str
    workflow: str
    batch: str | None
    priority: int
    waiting: bool
    number: int
    first: str

    @property
    def turn(self) -> str:
        """Whose turn it is when they begin: that of their batch, or of their plan or workflow."""
        return self.workflow if self.batch is None else f"batch {self.batch}"


class Hold(Record, omit_defaults=True):
    """What a task that the process of a plan does itself uses of limits: it waits for it, or, once it is ``granted``,
    has it until it is removed. It ends with the session of that process.

    :param id: as that of a run, made when it began to wait.
    :param plan: the name of the plan, ``task`` the id of the task, and ``epoch`` that of its attempt.
    :param uses: as in the record of a run.
    :param turn: as that of the runs of the plan: the plan has one turn for both.
    :param at: since when it waits, or has it.
    """

    id: str
    plan: str
    task: str
    epoch: int
    uses: str
    turn: str
    session: str
    at: float
    priority: int = 0
    granted: bool = False

    @property
    def group(self) -> LimitedRuns:
        """As it is judged beside runs."""
        return LimitedRuns(self.uses, self.turn, None, self.priority, not self.granted, 1, self.id)


class Shortage(NamedTuple):
    """A limit that has too little room for a run: ``free`` of ``name`` is free, counted by ``limit``. ``at`` is when a
    rate has room again; None if a holder has to end first, if it never has so much room, or if there is no such limit
    (any more)."""

    name: str
    limit: Limit | None
    free: int
    at: float | None = None


class LimitBook:
    """What is free, as of one moment: ``accounts`` are those of ``limits``, by their names, and ``held`` is how much of
    each name is in use. ``next_in`` is the lowest id that waits in each series, by the name of its limit. ``changed``
    are the names of the limits whose accounts have to be written."""

    def __init__(
        self,
        limits: Mapping[str, Limit],
        accounts: Mapping[str, Account],
        held: Mapping[str, int],
        now: float,
        next_in: Mapping[str, str] = NOTHING,
    ) -> None:
        self._next_in = next_in
        self._limits, self._accounts, self._now = limits, dict(accounts), now
        self._held = Counter(dict(held))
        self._counting: dict[str, Limit | None] = {}
        self.changed: set[str] = set()

    def _limit(self, name: str) -> Limit | None:
        """The limit that counts for a name."""
        if name not in self._counting:
            self._counting[name] = limit_for(self._limits, name)
        return self._counting[name]

    def account(self, limit: str) -> Account:
        if limit not in self._accounts:
            self._accounts[limit] = Account()
        return self._accounts[limit]

    def shortages(self, uses: Mapping[str, int], kept: Container[str] = ()) -> list[Shortage]:
        """The limits that have too little room; none if a run may begin now. The rest of those that are ``kept`` is for
        another run."""
        shortages = (self._shortage(name, amount, kept) for name, amount in uses.items())
        return [shortage for shortage in shortages if shortage is not None]

    def _shortage(self, name: str, amount: int, kept: Container[str]) -> Shortage | None:
        limit = self._limit(name)
        if limit is None:
            return Shortage(name, None, 0)
        if limit.size is not None and self._held[name] + amount > limit.size:
            return Shortage(name, limit, max(0, limit.size - self._held[name]))
        if limit.rate is not None:
            account = self.account(limit.name)
            free = account.room(name, limit.rate, self._now)
            if amount > free:
                ever = amount <= limit.rate.number
                at = account.free_at(name, amount, limit.rate, self._now) if ever else None
                return Shortage(name, limit, max(0, free), at)
        return Shortage(name, limit, 0) if name in kept else None

    def by_turn(self, waiting: Iterable[LimitedRuns]) -> list[LimitedRuns]:
        """What waits, the first in turn first."""
        served = {
            name: {turn: place for place, turn in enumerate(account.turns)} for name, account in self._accounts.items()
        }
        return sorted(waiting, key=lambda group: (-group.priority, self._place(group, served), group.first))

    def _place(self, group: LimitedRuns, served: Mapping[str, Mapping[str, int]]) -> int:
        """The greater, the later it was the turn of a group, in any of its limits."""
        limits = filter(None, map(self._limit, uses_of(group.uses)))
        return max((served.get(limit.name, NOTHING).get(group.turn, -1) for limit in limits), default=-1)

    def in_turn(self, waiting: Iterable[LimitedRuns]) -> Iterator[LimitedRuns]:
        """What may begin now, the first in turn first, each as if it alone began. What is short of a single limit keeps
        the rest of that for itself, unless the limit was lowered and allows so much no more."""
        kept: set[str] = set()
        for group in self.by_turn(waiting):
            uses = uses_of(group.uses)
            if any(group.first > self._next_in.get(name, "~") for name in uses):
                continue  # an older run of its series waits
            shortages = self.shortages(uses, kept)
            if not shortages:
                yield group
            elif len(shortages) == 1:
                (short,) = shortages
                if short.limit is not None and uses[short.name] <= short.limit.most:
                    kept.add(short.name)

    def room_at(self, waiting: Iterable[LimitedRuns]) -> float | None:
        """When the first of those that only wait for rates may begin; None if there are none."""
        if all(limit.rate is None for limit in self._limits.values()):
            return None
        times = []
        for group in waiting:
            at = [shortage.at for shortage in self.shortages(uses_of(group.uses))]
            known = [time for time in at if time is not None]
            if known and len(known) == len(at):
                times.append(max(known))
        return min(times, default=None)

    def keep(self, uses: Mapping[str, int]) -> None:
        """Leave this to somebody else, whose turn it is."""
        self._held.update(uses)

    def grant(self, uses: Mapping[str, int], turn: str) -> None:
        """A run that uses this begins."""
        for name, amount in uses.items():
            limit = self._limit(name)
            if limit is None:
                raise UnknownLimit(name)
            account = self.account(limit.name)
            account.serve(turn)
            if limit.rate is not None:
                account.begin(name, amount, limit.rate, self._now)
            self._held[name] += amount
            self.changed.add(limit.name)
