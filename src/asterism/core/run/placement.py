"""Placement: which device gets a task or a run, by filter, score and strategy.

A device is a *candidate* for a run if it is reachable, is not to be avoided, has the capabilities that the workflow
needs, satisfies its ``requires``, accepts the run by its own rule, and is not resting: both sides must agree. A run
waits for a device that only rests. Among the candidates with a free slot: ``prefers`` narrows the choice if any
candidate satisfies it; orchestration work goes to the coordinator if it is among them; devices near the creator go
first; then the strategy decides. The orchestrator uses the same strategies for tasks.

The default strategy is ``score``::

    40 * (1 - load) + 30 * connection quality + 20 * election rank + 10 * relevant capabilities

All four are in 0…1. Relevant capabilities are the share of the wanted ones that the device has.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from asterism.core.plan.task import PLUGIN_NEED, Lane, plugins_in
from asterism.core.record import Record, Struct
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import ABROAD, OPEN, Session, election_ranks
from asterism.core.run.work import Work


class Weights(Record):
    load: float = 40.0
    connection: float = 30.0
    rank: float = 20.0
    capability: float = 10.0


class Candidate(Struct, eq=False):
    """A device as strategies see it."""

    id: str
    can: frozenset[str] = frozenset()
    slots: int | None = None  # None: no limit
    running: int = 0
    connection: float = 1.0
    rank: float = 0.0
    reachable: bool = True
    last_given: int = 0  # serial number of its last assignment, for round_robin

    @property
    def load(self) -> float:
        """The share of its slots in use. A device without a limit is never full."""
        return self.running / (self.slots if self.slots is not None else self.running + 1)

    @property
    def free(self) -> bool:
        return self.reachable and (self.slots is None or self.running < self.slots)


def capable(device: Candidate, lane: Lane) -> bool:
    """Whether the device fulfils the requirements of a lane."""
    if lane is None:
        return True
    wanted, needs = lane
    return (wanted is None or wanted == device.id) and needs <= device.can


def needed_capabilities(lane: Lane) -> frozenset[str]:
    return lane[1] if lane is not None else frozenset()


DEFAULT_WEIGHTS = Weights()


def score_parts(
    device: Candidate, lane: Lane, weights: Weights = DEFAULT_WEIGHTS, wants: frozenset[str] = frozenset()
) -> dict[str, float]:
    """The parts of the score, by the names of the weights. ``capability`` is the share that a device has of the wanted
    capabilities, or of the needed ones if none are wanted: every candidate has all of the needed ones."""
    asked = wants or needed_capabilities(lane)
    return {
        "load": weights.load * (1.0 - device.load),
        "connection": weights.connection * device.connection,
        "rank": weights.rank * device.rank,
        "capability": weights.capability * (len(asked & device.can) / len(asked) if asked else 0.0),
    }


def score(
    device: Candidate, lane: Lane, weights: Weights = DEFAULT_WEIGHTS, wants: frozenset[str] = frozenset()
) -> float:
    return sum(score_parts(device, lane, weights, wants).values())


def highest_score(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    return max(devices, key=lambda device: score(device, lane))


def round_robin(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    return min(devices, key=lambda device: device.last_given)


def capability_match(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    """The most specialised device: the one with the fewest capabilities that are not asked for; of equals, the one with
    the most that are."""
    asked = needed_capabilities(lane)
    return min(devices, key=lambda device: (len(device.can - asked), -len(device.can & asked), device.load))


def load_balance(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    return min(devices, key=lambda device: (device.load, device.running))


Strategy = Callable[[Sequence[Candidate], Lane], Candidate]

STRATEGIES: dict[str, Strategy] = {
    "score": highest_score,
    "round_robin": round_robin,
    "capability_match": capability_match,
    "load_balance": load_balance,
}


# -- runs: the filter and the choice -----------------------------------------------------------------------------------

Evaluate = Callable[[str, Mapping[str, Any]], bool | str]
"""(expression, names) -> whether it holds, or why it cannot be evaluated."""

_Capabilities = tuple[frozenset[str], frozenset[str]]
"""The capabilities that a workflow needs, and those that it wants: the score depends only on these."""

MAX_SCORES = 100
"""How many scores an assignment keeps: the best ones."""


def candidate_of(session: Session, now: float, rank: float, last_given: int = 0) -> Candidate:
    """The session of a device as strategies see it."""
    slots = max(session.slots, 1)  # loads are shares of it
    reachable = session.reachable(now)
    return Candidate(session.device, session.can, slots, session.used, session.quality, rank, reachable, last_given)


class Choice(NamedTuple):
    """``owner`` is None if no candidate has a free slot. ``refused`` has the reasons of the devices that are not
    candidates, ``busy`` the candidates without a free slot, ``resting`` the refused devices that only rest. ``within``
    is how long the owner has to answer, in seconds, if not as long as the workflow says."""

    owner: Owner | None
    scores: Mapping[str, float]
    refused: Mapping[str, str]
    busy: tuple[str, ...]
    resting: tuple[str, ...] = ()
    within: float | None = None


class Placer:
    """Places runs on devices: the fleet at one moment, and the assignments made since."""

    def __init__(
        self,
        sessions: Sequence[Session],
        now: float,
        evaluate: Evaluate,
        *,
        coordinator: str | None = None,
        weights: Weights = DEFAULT_WEIGHTS,
        peer_timeout: float | None = None,
        last_assigned: Mapping[str, int] | None = None,
    ) -> None:
        self.now, self.coordinator, self.weights, self._peer_timeout = now, coordinator, weights, peer_timeout
        self.sessions = {session.device: session for session in sessions if session.reachable(now)}
        # devices of peers take no part in this election
        here = election_ranks([session for session in self.sessions.values() if session.state == OPEN], coordinator)
        self.ranks = {name: here.get(name, 0.0) for name in self.sessions}
        # serial number of the last assignment of each device, for round_robin
        self.last_assigned = dict(last_assigned or {})
        self._evaluate_rule = evaluate
        self._profiles: dict[str, Mapping[str, Any]] = {}
        self._verdicts: dict[int, dict[str, bool | str]] = {}  # by the identity of a profile, which is kept alive
        self._used = {name: session.used for name, session in self.sessions.items()}
        self._last = max(self.last_assigned.values(), default=0)
        # computed for one run and valid for the next, except for the device that got it
        self._candidates: dict[str, Candidate] = {}
        self._scores: dict[_Capabilities, dict[str, float]] = {}

    def refusal_reason(self, session: Session, run: Run) -> str | None:
        """Why a device is not a candidate for a run; None if it is one."""
        return self._mismatch(session, run) or resting_reason(session.resting)

    def waits_for(self, session: Session, run: Run) -> bool:
        """Whether a device would be a candidate if it did not rest and its circuit breaker were closed."""
        away = session.resting is not None or session.suspended is not None
        return away and self._mismatch(session.resumed(), run) is None

    def rule_refusal(self, session: Session, run: Run) -> str | None:
        """Why a device that could execute a run refuses it by its own rule; None if it accepts it, or could not."""
        if session.accepts is None or session.resting is not None:
            return None
        names = self._names_of(session)
        if _unfit_reason(session, run, names, self._evaluate) is not None:
            return None
        return _rule_reason(session, run, names, self._evaluate)

    def _mismatch(self, session: Session, run: Run) -> str | None:
        judged = run.work.requires is not None or session.accepts is not None
        return mismatch_reason(session, run, self._names_of(session) if judged else {}, self._evaluate)

    def choose(
        self,
        run: Run,
        *,
        state: str | None = None,
        near: Collection[str] = (),
        awaited: Collection[str] = (),
    ) -> Choice:
        """The device for a run. With ``state``, only a session in that state is chosen. Devices that are ``near`` the
        creator go before others, unless the workflow prefers those. Devices that are ``awaited`` by other runs count as
        busy: the run waits for them with the others."""
        refused: dict[str, str] = {}
        scores: dict[str, float] = {}
        free: list[Session] = []
        busy: list[str] = []
        resting: list[str] = []
        known = self._scores.setdefault((run.work.needs, run.work.wants), {})
        for name, session in self.sessions.items():
            why = self._mismatch(session, run)
            if why is None and session.resting is not None:
                why = resting_reason(session.resting)
                resting.append(name)
            if why is not None:
                refused[name] = why
                continue
            if name not in known:
                known[name] = sum(self.score_parts(session, run.work).values())
            scores[name] = known[name]
            if self._used[name] >= session.slots or name in awaited:
                busy.append(name)
            elif state in (None, session.state):
                free.append(session)
        if not free:
            return Choice(None, _best_scores(scores), refused, tuple(busy), tuple(resting))
        chosen = free[0] if len(free) == 1 else self._pick(self._preferred(free, run.work, near), run.work, scores)
        within = self.time_to_answer(chosen)
        return Choice(chosen.owner, _best_scores(scores, chosen.device), refused, tuple(busy), tuple(resting), within)

    def score_parts(self, session: Session, work: Work) -> dict[str, float]:
        """The parts of the score of a candidate, by the names of the weights."""
        return score_parts(self._candidate(session), (None, work.needs), self.weights, work.wants)

    def time_to_answer(self, session: Session) -> float | None:
        """How long a device of a peer has to answer: its answer comes when the stores meet. None for all others."""
        return self._peer_timeout if session.state == ABROAD else None

    def record_assignment(self, device: str) -> None:
        """Count an assignment to a device."""
        self._last += 1
        self.last_assigned[device] = self._last
        self.reserve(device)

    def release(self, device: str) -> None:
        """Free a slot that ``reserve`` or ``record_assignment`` counted: the assignment was not written."""
        self.reserve(device, -1)

    def reserve(self, device: str, slots: int = 1) -> None:
        """Count a slot of a device as used, for an assignment that its session does not show."""
        if device in self._used:
            self._used[device] += slots
        self._candidates.pop(device, None)
        for scores in self._scores.values():
            scores.pop(device, None)

    def _names_of(self, session: Session) -> Mapping[str, Any]:
        name = session.device
        if name not in self._profiles:
            self._profiles[name] = device_names = session.expression_names(self.ranks[name])
            self._verdicts[id(device_names)] = {}
        return self._profiles[name]

    def _evaluate(self, expression: str, names: Mapping[str, Any]) -> bool | str:
        """Evaluate a rule. The result of a workflow's rule for a device is kept for all runs. A device's own rule also
        sees the run, and is evaluated each time."""
        known = self._verdicts.get(id(names))
        if known is None:
            return self._evaluate_rule(expression, names)
        if expression not in known:
            known[expression] = self._evaluate_rule(expression, names)
        return known[expression]

    def _candidate(self, session: Session) -> Candidate:
        name = session.device
        if name not in self._candidates:
            candidate = candidate_of(session, self.now, self.ranks[name], self.last_assigned.get(name, 0))
            candidate.running = self._used[name]
            self._candidates[name] = candidate
        return self._candidates[name]

    def _preferred(self, free: list[Session], work: Work, near: Collection[str]) -> list[Session]:
        if work.prefers is not None:
            preferred = [
                session for session in free if not unmet_reason(work.prefers, self._names_of(session), self._evaluate)
            ]
            free = preferred or free
        if work.orchestration:
            free = [session for session in free if session.device == self.coordinator] or free
        return [session for session in free if session.device in near] or free

    def _pick(self, free: list[Session], work: Work, scores: Mapping[str, float]) -> Session:
        if work.strategy == "score":
            return max(free, key=lambda session: scores[session.device])
        choose = STRATEGIES[work.strategy]
        asked = work.needs | work.wants
        return self.sessions[choose([self._candidate(session) for session in free], (None, asked)).id]


def resting_reason(resting: str | None) -> str | None:
    """The refusal reason of a device that would hand work back because of ``resting``."""
    return None if resting is None else f"resting: it would hand this back because {resting}"


def mismatch_reason(session: Session, run: Run, device_names: Mapping[str, Any], evaluate: Evaluate) -> str | None:
    """Why a device is not a candidate for a run, apart from resting; None if it is one. ``device_names`` are the names
    of its profile for expressions."""
    return _unfit_reason(session, run, device_names, evaluate) or _rule_reason(session, run, device_names, evaluate)


def _unfit_reason(session: Session, run: Run, device_names: Mapping[str, Any], evaluate: Evaluate) -> str | None:
    """Why a device is not a candidate for a run, apart from resting and its own rule."""
    if run.pinned is not None and run.pinned != session.device:
        return f"the run is pinned to {run.pinned}"
    if not run.work.needs <= session.can:
        return lacking_text(run.work.needs - session.can)
    if session.draining:
        return "it is draining"
    if session.slots == 0:
        return "it has no slots"
    if session.suspended is not None:
        return f"it has stopped taking work: {session.suspended}"
    if session.device in run.avoid:
        return run.declined.get(session.device) or "it was already tried in this round"
    if run.work.requires is not None:
        return unmet_reason(run.work.requires, device_names, evaluate)
    return None


def lacking_text(lacking: frozenset[str]) -> str:
    """That a device lacks capabilities: ``it lacks gpu and the plug-in 'container'``."""
    plugins = [f"the plug-in {name!r}" for name in plugins_in(lacking)]
    plain = ", ".join(need for need in sorted(lacking) if not need.startswith(PLUGIN_NEED))
    return f"it lacks {' and '.join(filter(None, [plain, *plugins]))}"


def _rule_reason(session: Session, run: Run, device_names: Mapping[str, Any], evaluate: Evaluate) -> str | None:
    """Why a device refuses a run by its own rule; None if it accepts the run."""
    if session.accepts is not None and (why := unmet_reason(session.accepts, _rule_names(run, device_names), evaluate)):
        return f"its own rule: {why}"
    return None


def unmet_reason(expression: str, names: Mapping[str, Any], evaluate: Evaluate) -> str | None:
    """Why an expression does not hold; None if it holds."""
    verdict = evaluate(expression, names)
    if verdict is True:
        return None
    return f"{expression!r} does not hold" if verdict is False else str(verdict)


def _rule_names(run: Run, device_names: Mapping[str, Any]) -> dict[str, Any]:
    """The names that a device's own rule sees."""
    run_names = {"workflow": run.workflow, "priority": run.priority, "series": run.series or "", "by": run.created_by}
    return {"run": run_names, "device": device_names}


def _best_scores(scores: Mapping[str, float], chosen: str | None = None) -> Mapping[str, float]:
    """The best scores, and that of the chosen device: a strategy may not choose by score."""
    shown: Iterable[tuple[str, float]] = scores.items()
    if len(scores) > MAX_SCORES:
        shown = heapq.nsmallest(MAX_SCORES, shown, key=lambda pair: (pair[0] != chosen, -pair[1]))
    return {name: round(score, 2) for name, score in shown}
