"""Predicates on runs: whether one matches a query, suits a take request, or has a silent owner.

Whether a run is a copy that is left to a peer depends on how an engine stores it, and is up to the engine.
"""

from __future__ import annotations

from asterism.core.run.run import Run, RunStatus
from asterism.core.run.session import ABROAD, ENDED, Session
from asterism.store.protocol import Query, TakeRequest


def is_orphan(run: Run, session: Session, now: float) -> bool:
    """Whether the owner of a run has ended, or was silent for longer than the run's timeout."""
    if session.state in (ENDED, ABROAD):
        return session.state == ENDED
    return run.status is not RunStatus.ASSIGNED and session.beat_at + run.timeout < now


def suits(run: Run, request: TakeRequest) -> bool:
    """Whether an offered run may go to the device of a request, apart from its priority."""
    return (
        run.not_before <= request.now
        and run.kind not in request.not_kinds
        and run.pinned in (None, request.device)
        and request.device not in run.avoid
    )


def matches(run: Run, query: Query) -> bool:
    """Whether a run satisfies a query, apart from ``offered`` and ``judged``."""
    return (
        (query.statuses is None or run.status in query.statuses)
        and (query.workflow is None or run.workflow == query.workflow)
        and (query.device is None or run.device == query.device)
        and (query.session is None or run.session == query.session)
        and (query.key is None or run.key == query.key)
        and (query.series is None or run.series == query.series)
        and (query.avoiding is None or bool(run.avoid) == query.avoiding)
        and (query.due_before is None or (run.due_at is not None and run.due_at < query.due_before))
        and (query.ended_before is None or (run.ended_at is not None and run.ended_at < query.ended_before))
        and (
            query.waiting_before is None or (run.waiting_since is not None and run.waiting_since < query.waiting_before)
        )
        and (query.id_like is None or query.id_like in run.id)
        and (query.after is None or (run.id < query.after if query.newest else run.id > query.after))
    )
