"""The budget of an editor that costs money: what it may spend on a plan, what is spent, and the account in the store.

A call *reserves* what it may cost at most before it is made, and *settles* what it has cost afterwards, so calls that
overlap never spend the same rest twice, and a process that dies in between leaves its reservation behind as spent. A
spent budget does not fail the plan: it holds it until a person raises the budget, or lets the plan go on without its
editor.

The account of a stored plan is the register ``budget/NAME``, which the editor writes, and the person who decides. All
but the last functions of this module are pure.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asterism.base.clock import new_id
from asterism.base.durations import format_duration, parse_duration
from asterism.base.text import plural
from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan.editor_cost import EditorCost, dollars_text
from asterism.core.plan.edits import EXPIRED, REFUSED, Edit, EditBatch, EditWaits
from asterism.core.plan.group_elements import tasks_added
from asterism.core.record import InvalidRecord, Record, decode, field, replace
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import PutRegister, Store

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet

WAIT = 86_400.0
"""Seconds that a plan waits for a person when its budget is spent, by default; then it goes on without its editor."""


class InvalidBudget(PlanError):
    """A budget that cannot be read."""


class Budget(Record, omit_defaults=True, forbid_unknown_fields=True):
    """What an editor may spend on one plan. None: no limit.

    ``dollars``, ``tokens`` (in and out), ``calls`` of a model, ``seconds`` that the model takes, ``tasks`` that it adds
    to the plan. ``wait`` is how long a spent budget holds the plan, in seconds."""

    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None
    tasks: int | None = None
    wait: float = WAIT

    def __post_init__(self) -> None:
        for name in LIMITS:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 <= value < math.inf):
                raise InvalidBudget(f"{name} of a budget is a number, 0 or more, not {value!r}")
        if not self.wait > 0:
            raise InvalidBudget(f"wait of a budget is a number of seconds above 0, not {self.wait!r}")

    def __str__(self) -> str:
        parts = [_amount(name, value) for name in LIMITS if (value := getattr(self, name)) is not None]
        return ", ".join(parts) or "no limit"

    def raised(self, other: Budget) -> Budget:
        """With the limits that ``other`` has."""
        limits = {name: value for name in LIMITS if (value := getattr(other, name)) is not None}
        return replace(self, **limits, wait=self.wait if other.wait == WAIT else other.wait)

    def changed_since(self, other: Budget) -> Budget:
        """Only the limits that are not those of ``other``."""
        same: dict[str, Any] = {name: None for name in LIMITS if getattr(self, name) == getattr(other, name)}
        return replace(self, **same)

    @classmethod
    def from_json(cls, data: Any) -> Budget:
        """Raises InvalidBudget."""
        try:
            return decode(cls, data)
        except InvalidRecord as error:
            raise InvalidBudget(f"not a budget: {error}; its fields are {', '.join(LIMITS)}, wait") from None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget as a person writes it: ``$2``, ``$2 40calls``, ``100ktokens 10m 50tasks``. Raises InvalidBudget."""
        limits: dict[str, Any] = {}
        for word in text.replace(",", " ").split():
            name, value = _limit(word, text)
            if name in limits:
                raise InvalidBudget(f"{text!r} limits {name} twice")
            limits[name] = value
        if not limits:
            raise _unreadable(text)
        return cls(**limits)


LIMITS = ("dollars", "tokens", "calls", "seconds", "tasks")
"""What a budget may limit."""

_WORD = re.compile(r"(\d+(?:\.\d+)?)([kM]?)(tokens?|calls?|tasks?)")


def _limit(word: str, text: str) -> tuple[str, float | int]:
    if word.startswith("$") and re.fullmatch(r"\d+(\.\d+)?", word[1:]):
        return "dollars", float(word[1:])
    if match := _WORD.fullmatch(word):
        value = float(match[1]) * {"": 1, "k": 1_000, "M": 1_000_000}[match[2]]
        if value == int(value):
            return match[3].rstrip("s") + "s", int(value)
    try:
        return "seconds", parse_duration(word, unit_required=True)
    except ValueError:
        raise _unreadable(text) from None


def _unreadable(text: str) -> InvalidBudget:
    return InvalidBudget(f"{text!r} is not a budget (examples: $2, 40calls, 100ktokens, 10m, 50tasks, '$2 40calls')")


def _amount(name: str, value: float) -> str:
    if name == "dollars":
        return dollars_text(value)
    return format_duration(value) if name == "seconds" else plural(round(value), name[:-1])


class Spent(Record, omit_defaults=True):
    """What was spent, in the units of a budget."""

    dollars: float = 0.0
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    tasks: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, name) + getattr(other, name) for name in LIMITS))

    def __str__(self) -> str:
        return self.text(_amount("dollars", self.dollars))

    def text(self, money: str) -> str:
        """What was spent, with these words for the money."""
        others = (_amount(name, getattr(self, name)) for name in LIMITS if name != "dollars")
        return ", ".join([money, *others])

    @classmethod
    def of(cls, cost: EditorCost, tasks: int = 0) -> Spent:
        return cls(cost.dollars or 0.0, cost.tokens, cost.calls, cost.seconds, tasks)


class Account(Record, omit_defaults=True):
    """The budget of one plan, what was spent of it, and what calls under way may cost (``open``, by the id of a call).
    ``ends`` is when each of them has ended at the latest, by the clock of its cassette: its process may have died.

    ``without_editor``: a person, named in ``decided_by``, let the plan go on without its editor. ``held_since`` is when
    the budget began to hold the plan, ``held_why`` what was spent then, ``held_for`` what the editor has to spend to
    continue. ``unpriced`` names the models whose price is unknown. ``answers`` are the tasks that each answer adds,
    which are in ``spent``, too. ``refusals`` are the approvals that were refused, and whose tasks are therefore not
    counted. ``given`` is the budget with which the editor was started: only what has changed since raises a limit
    that a person may have lowered."""

    budget: Budget = field(default_factory=Budget)
    spent: Spent = field(default_factory=Spent)
    open: Mapping[str, Spent] = field(default_factory=dict)
    answers: Mapping[str, int] = field(default_factory=dict)
    refusals: tuple[int, ...] = ()
    held_for: Spent = field(default_factory=Spent)
    given: Budget = field(default_factory=Budget)
    without_editor: bool = False
    decided_by: str = ""
    held_since: float | None = None
    unpriced: str = ""
    held_why: str = ""
    ends: Mapping[str, float] = field(default_factory=dict)

    @property
    def held_until(self) -> float | None:
        """When the plan goes on without its editor if nobody decides; None if the budget does not hold the plan."""
        return None if self.held_since is None else self.held_since + self.budget.wait

    @property
    def committed(self) -> Spent:
        """What is spent, or may be by the calls under way."""
        return sum(self.open.values(), self.spent)

    def left(self, name: str) -> float:
        """What is left of a limit; infinity if there is none."""
        limit = getattr(self.budget, name)
        return math.inf if limit is None else limit - getattr(self.committed, name)

    @property
    def hold(self) -> str:
        """Why the budget holds the plan; empty if it does not."""
        if self.held_since is None:
            return ""
        spent = [name for name in LIMITS if self.left(name) <= _ROUNDING]
        return "; ".join(self._short(name, Spent()) for name in spent) or "a call may cost more than what is left"

    def obstacle(self, needed: Spent) -> str | None:
        """Why ``needed`` may not be spent; None if it may."""
        return "; ".join(self._short(name, needed) for name in self._too_low(needed)) or None

    def _too_low(self, needed: Spent) -> list[str]:
        return [name for name in LIMITS if getattr(needed, name) > self.left(name) + _ROUNDING]

    def higher_limits(self, needed: Spent | None = None) -> str:
        """Limits that leave room for ``needed``, as a person writes them: ``80calls``. Without it, for what the editor
        waits for; if that is not known, a higher one in place of the limit that is nearest to its end."""
        needed, used = needed or self.held_for, self.committed
        limits = {name: limit for name in LIMITS if (limit := getattr(self.budget, name)) is not None}
        most = sorted(limits, key=lambda name: getattr(used, name) / (limits[name] or _ROUNDING))[-1:]
        return " ".join(
            _word(
                name,
                max(2 * limits[name], getattr(used, name) + getattr(needed, name), 0.01 if name == "dollars" else 1),
            )
            for name in self._too_low(needed) or most
        )

    @property
    def spent_text(self) -> str:
        """What is spent. A price that is unknown is not shown as no money."""
        if not self.unpriced:
            return str(self.spent)
        return self.spent.text(
            f"{dollars_text(self.spent.dollars)} and more" if self.spent.dollars else "price unknown"
        )

    def _short(self, name: str, needed: Spent) -> str:
        limit, used, more = (getattr(amounts, name) for amounts in (self.budget, self.committed, needed))
        spent = _amount(name, used) if name in ("dollars", "seconds") else f"{used:,}"
        verb = "is" if limit == 1 and name not in ("dollars", "seconds") else "are"
        text = f"{spent} of {_amount(name, limit)} {verb} spent"
        return (
            text
            if used + _ROUNDING >= limit or name == "seconds"
            else f"{text}, and {_amount(name, more)} more are needed"
        )

    def bounded(self, own: Budget) -> Account:
        """The account as a model sees it that has a budget of its own, other than that with which the account was
        opened: the lower one of two limits holds."""
        limits = {name: limit for name in LIMITS if (limit := getattr(own.changed_since(self.given), name)) is not None}
        lowest = {name: min(limit, self.left(name) + getattr(self.committed, name)) for name, limit in limits.items()}
        return replace(self, budget=replace(self.budget, **lowest))

    def with_unpriced(self, names: str) -> Account:
        """Models whose price is unknown are paid from the account, too."""
        known = [name for name in self.unpriced.split(", ") if name]
        return replace(self, unpriced=", ".join(dict.fromkeys([*known, *(name for name in names.split(", ") if name)])))

    def reserve(self, call: str, needed: Spent, end: float = math.inf) -> Account:
        """``end`` is when the call has ended at the latest."""
        ends = {**self.ends, call: end} if end < math.inf else self.ends
        return replace(self, open={**self.open, call: needed}, ends=ends)

    def settle(self, call: str, cost: Spent) -> Account:
        """The call has ended, with this cost."""
        left = {key: value for key, value in self.open.items() if key != call}
        ends = {key: end for key, end in self.ends.items() if key != call}
        return replace(self, open=left, ends=ends, spent=self.spent + cost)

    def added(self, answer: str, tasks: int) -> Account:
        """An answer adds this many tasks; none, if it is not applied. Each answer is counted once, however often this
        is called: after a crash it is applied by another process."""
        others = {key: value for key, value in self.answers.items() if key != answer}
        more = tasks - self.answers.get(answer, 0)
        answers = {**others, answer: tasks} if tasks else others
        return replace(self, answers=answers, spent=self.spent + Spent(tasks=more))

    def refused(self, approval: int, edits: str) -> Account:
        """A person refused an answer with these edits (the end of its key): its tasks are not counted."""
        if approval in self.refusals:
            return self
        answer = next((key for key in self.answers if key.endswith(edits)), None)
        account = self if answer is None else self.added(answer, 0)
        if account.obstacle(account.held_for) is None:
            account = account.released()
        return replace(account, refusals=(*self.refusals, approval))

    def lost(self, calls: Iterable[str]) -> Account:
        """The cost of these calls is unknown: what was reserved for them counts as spent."""
        account = self
        for call in calls:
            if call in account.open:
                account = account.settle(call, account.open[call])
        return account

    def expired(self, now: float) -> Account:
        """Calls that have ended by now, but were not settled: their processes have died."""
        return self.lost([call for call, end in self.ends.items() if end <= now])

    def abandoned(self) -> Account:
        """No process makes calls for this plan any more: what was reserved counts as spent."""
        return self.lost(tuple(self.open))

    def raised(self, budget: Budget, by: str = "") -> Account:
        """With higher, or lower, limits. The editor is asked again. Raises InvalidBudget for a limit that cannot hold:
        dollars, if the price of a model is unknown."""
        if budget.dollars is not None and self.unpriced:
            raise InvalidBudget(
                f"the price of {self.unpriced} is unknown, so dollars cannot be limited: limit tokens or calls instead"
            )
        wider = self.budget.raised(budget)
        return replace(self.released(), budget=wider, without_editor=False, decided_by=by)

    def ended_editing(self, by: str) -> Account:
        """The plan goes on without its editor."""
        return replace(self.released(), without_editor=True, decided_by=by)

    def held(self, now: float, why: str = "", needed: Spent | None = None) -> Account:
        """The budget holds the plan from now on, until it has room for ``needed``."""
        if self.held_since is not None:
            return self
        return replace(self, held_since=now, held_why=why, held_for=needed or Spent())

    def released(self) -> Account:
        """The budget holds the plan no longer."""
        return replace(self, held_since=None, held_why="", held_for=Spent())


_ROUNDING = 1e-9


def _word(name: str, value: float) -> str:
    """A limit as a person writes it, rounded up: ``$4``, ``80calls``, ``120s``."""
    if name == "dollars":
        return f"${math.ceil(value * 100 - 1e-6) / 100:.2f}".removesuffix(".00")
    number = math.ceil(value)
    return f"{number}s" if name == "seconds" else f"{number}{name if number != 1 else name[:-1]}"


def edits_key(edits: Sequence[Edit]) -> str:
    """The end of the name of an answer in an account: the same for the same edits."""
    return hashlib.sha256("; ".join(map(str, edits)).encode()).hexdigest()[:12]


# -- the account in a store --------------------------------------------------------------------------------------------


def exchange_prefix(plan: str) -> str:
    """The prefix of the registers with the exchanges of a plan with a model (``models/cassette.py``)."""
    return f"exchange/{plan}/"


def account_key(plan: str) -> str:
    return f"budget/{plan}"


async def read_account(store: Store, plan: str) -> Account | None:
    """The account of a plan; None if no editor of it has a budget."""
    register = await store.register(account_key(plan))
    return None if register is None else register.read(stored_account)


def stored_account(value: Any) -> Account:
    """The account in the value of a register."""
    return Account.from_json(value["account"])


async def raise_budget(fleet: Fleet, plan: str, budget: Budget) -> Account:
    """Change the limits that ``budget`` names, and let the editor of the plan continue. Raises PlanError if the plan
    has no budget, and InvalidBudget for dollars if the price of a model is unknown."""
    return await _decide(fleet, plan, lambda account: account.raised(budget, fleet.by))


async def go_on_without_editor(fleet: Fleet, plan: str) -> Account:
    """Let a plan go on without its editor. Raises PlanError if the plan has no budget."""
    return await _decide(fleet, plan, lambda account: account.ended_editing(fleet.by))


@contextlib.asynccontextmanager
async def tasks_paid(fleet: Fleet, plan: str, batch: EditBatch, *, dry_run: bool = False) -> AsyncIterator[None]:
    """Count the tasks that a batch of a model adds, which the block applies; not if it is certain that it did not, and
    that the batch does not wait for a person. Without an account there is no limit. Raises PlanError if the budget does
    not allow them."""
    from asterism.durable.plan_actor import AnswerLost

    store, tasks = fleet.store, tasks_added(batch)
    answer = f"{new_id(store.clock(), fleet.chance)} {edits_key(batch.edits)}"

    def counted(account: Account) -> Account:
        obstacle = account.obstacle(Spent(tasks=tasks))
        if obstacle is not None:
            higher = f"asterism plan budget {shlex.quote(plan)} --raise '{account.higher_limits(Spent(tasks=tasks))}'"
            raise PlanError(f"the budget of the model is spent: {obstacle}. Raise it: {higher}")
        return account if dry_run else account.added(answer, tasks)

    if tasks:
        await count_refusals(store, plan)
    charged = tasks > 0 and await _change(store, plan, counted) is not None and not dry_run
    try:
        yield
    except (EditWaits, AnswerLost):
        raise
    except (EditRejected, PlanError):
        if charged:
            await _change(store, plan, lambda account: account.added(answer, 0))
        raise


async def count_refusals(store: Store, plan: str) -> None:
    """Do not count the tasks of edits that a person refused, or that nobody approved in time."""
    from asterism.durable.approval_store import list_approvals

    refused = [
        edit
        for edit in await list_approvals(store, plan)
        if edit.state in (REFUSED, EXPIRED) and edit.batch.editor is not None and tasks_added(edit.batch)
    ]

    def step(account: Account) -> Account:
        for edit in refused:
            account = account.refused(edit.id, edits_key(edit.batch.edits))
        return account

    if refused:
        await _change(store, plan, step)


async def _decide(fleet: Fleet, plan: str, step: Callable[[Account], Account]) -> Account:
    account = await _change(fleet.store, plan, step)
    if account is None:
        raise PlanError(f"plan {plan!r} has no budget: no editor with one has been asked yet")
    return account


async def _change(store: Store, plan: str, step: Callable[[Account], Account]) -> Account | None:
    """The account of a plan after a change; None if it has none."""

    async def attempt() -> Account | None:
        register = await store.register(account_key(plan))
        if register is None:
            return None
        before = register.read(stored_account)
        account = step(before)
        if account != before:
            value = {**register.value, "account": account.to_json()}
            await store.commit([PutRegister(account_key(plan), value, register.revision)])
        return account

    return await retry_on_conflict(attempt)
