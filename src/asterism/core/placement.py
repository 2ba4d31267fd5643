"""Which device gets a run: the filter and the score, over the sessions that the store knows.

A device is a *candidate* if it is reachable, not to be avoided, has what the workflow needs, satisfies its
``requires``, and its own rule accepts the run: both sides must agree. Among the candidates with a free slot ``prefers``
narrows the choice if it leaves anyone, work of orchestration goes to the coordinator if it is among them, and the
strategy decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from asterism.core.run import Owner, Run
from asterism.core.selection import DEFAULT_WEIGHTS, STRATEGIES, Candidate, Weights, score
from asterism.core.session import OPEN, Session, ranks
from asterism.core.workflow import Workflow

Evaluate = Callable[[str, Mapping[str, Any]], bool | str]
"""Whether an expression holds over some names, or why that cannot be told."""

MOST_SCORES = 100
"""How many scores are kept with an assignment: the best ones."""


class Choice(NamedTuple):
    """``owner`` is None if no candidate has a free slot. ``refused`` says why the others are no candidates, and
    ``busy`` who is one and has no room."""

    owner: Owner | None
    scores: Mapping[str, float]
    refused: Mapping[str, str]
    busy: tuple[str, ...]


class Outlook:
    """The fleet at one moment, and what has been given out since."""

    def __init__(
        self,
        sessions: Sequence[Session],
        now: float,
        evaluate: Evaluate,
        *,
        coordinator: str | None = None,
        weights: Weights = DEFAULT_WEIGHTS,
        given: Mapping[str, int] | None = None,
    ) -> None:
        self.now, self.coordinator, self.weights = now, coordinator, weights
        self.sessions = {session.device: session for session in sessions if session.reachable(now)}
        # those of peers are elected nowhere here
        here = ranks([session for session in self.sessions.values() if session.state == OPEN], coordinator)
        self.ranks = {name: here.get(name, 0.0) for name in self.sessions}
        self.given = dict(given or {})  # when each device was given work last: the memory of round_robin
        self._evaluate = evaluate
        self._shown = {name: session.shown(self.ranks[name]) for name, session in self.sessions.items()}
        self._used = {name: session.used for name, session in self.sessions.items()}

    def objection(self, session: Session, run: Run, workflow: Workflow) -> str | None:
        """Why a device is no candidate for a run, in words; None if it is one."""
        return objection(session, run, workflow, self._shown[session.device], self._evaluate)

    def choose(self, run: Run, workflow: Workflow) -> Choice:
        refused: dict[str, str] = {}
        able: list[Session] = []
        for name, session in self.sessions.items():
            why = self.objection(session, run, workflow)
            if why is None:
                able.append(session)
            else:
                refused[name] = why
        candidates = {session.device: self._candidate(session) for session in able}
        lane = (None, workflow.needs)
        scores = {name: round(score(one, lane, self.weights), 2) for name, one in candidates.items()}
        free = [session for session in able if self._used[session.device] < session.slots]
        busy = tuple(session.device for session in able if self._used[session.device] >= session.slots)
        if not free:
            return Choice(None, _best(scores), refused, busy)
        chosen = self._pick(self._preferred(free, workflow), workflow, candidates)
        return Choice(chosen.owner, _best(scores, chosen.device), refused, busy)

    def gave(self, device: str) -> None:
        """Remember that a device was given a run."""
        if device in self._used:
            self._used[device] += 1
        self.given[device] = max(self.given.values(), default=0) + 1

    def _candidate(self, session: Session) -> Candidate:
        candidate = session.candidate(self.now, self.ranks[session.device], self.given.get(session.device, 0))
        candidate.running = self._used[session.device]
        return candidate

    def _preferred(self, free: list[Session], workflow: Workflow) -> list[Session]:
        if workflow.prefers is not None:
            liked = [one for one in free if not against(workflow.prefers, self._shown[one.device], self._evaluate)]
            free = liked or free
        if workflow.orchestration:
            free = [one for one in free if one.device == self.coordinator] or free
        return free

    def _pick(self, free: list[Session], workflow: Workflow, candidates: Mapping[str, Candidate]) -> Session:
        if workflow.strategy == "score":
            lane = (None, workflow.needs)
            name = max((one.device for one in free), key=lambda device: score(candidates[device], lane, self.weights))
        else:
            name = STRATEGIES[workflow.strategy]([candidates[one.device] for one in free], (None, workflow.needs)).id
        return self.sessions[name]


def objection(
    session: Session, run: Run, workflow: Workflow, shown: Mapping[str, Any], evaluate: Evaluate
) -> str | None:
    """Why a device is no candidate for a run, in words; None if it is one. ``shown`` is its profile."""
    if run.pinned is not None and run.pinned != session.device:
        return f"the run is for {run.pinned} alone"
    if not workflow.needs <= session.can:
        return f"it cannot {', '.join(sorted(workflow.needs - session.can))}"
    if session.draining:
        return "it is being drained"
    if session.slots == 0:
        return "it does no work, it only watches"
    if session.device in run.avoid:
        return run.declined.get(session.device) or "it was tried already, others first"
    if workflow.requires is not None and (why := against(workflow.requires, shown, evaluate)):
        return why
    if session.accepts is not None and (why := against(session.accepts, _names(run, shown), evaluate)):
        return f"its own rule: {why}"
    return None


def against(expression: str, names: Mapping[str, Any], evaluate: Evaluate) -> str | None:
    """Why an expression does not hold; None if it does."""
    verdict = evaluate(expression, names)
    if verdict is True:
        return None
    return f"{expression!r} does not hold" if verdict is False else str(verdict)


def _names(run: Run, shown: Mapping[str, Any]) -> dict[str, Any]:
    """What a device's own rule sees."""
    told = {"workflow": run.workflow, "priority": run.priority, "series": run.series or "", "by": run.created_by}
    return {"run": told, "device": shown}


def _best(scores: Mapping[str, float], chosen: str | None = None) -> Mapping[str, float]:
    """The best ones, and that of the chosen one: a strategy may choose by something else."""
    if len(scores) <= MOST_SCORES:
        return scores
    return dict(sorted(scores.items(), key=lambda one: (one[0] != chosen, -one[1]))[:MOST_SCORES])
