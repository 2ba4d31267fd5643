"""Hypothesis strategies for runs: random walks along the transitions of the core, with any text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import Grant, Owner, Progress, Run
from asterism.core.run.workflow import Workflow

DEVICES = (
    "kitchen",
    "garage",
    "an attic with a long name",
    "dach-😀",
    "o'brien",
    'the "loft"',
    "50%",
    "a_b",
    "KITCHEN",
)


def _through_json(value: Any) -> Any:
    """Return a value as it comes out of JSON, where two halves of a surrogate pair become one character."""
    return json.loads(json.dumps(value))


TEXTS = st.text(st.characters(exclude_categories=()), max_size=12).map(_through_json)
"""Any Python text that JSON can hold, with NUL and lone surrogates."""

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
"""Names: any characters except control characters and surrogates."""

_PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
DOCUMENTS = (
    _PLAIN
    | st.lists(_PLAIN, max_size=3)
    | st.dictionaries(TEXTS, _PLAIN | st.lists(_PLAIN, max_size=2), max_size=3).map(_through_json)
)
"""Any JSON value."""

INPUTS = st.dictionaries(TEXTS, DOCUMENTS, max_size=2).map(_through_json)
TIMES = st.floats(0.0, 4e9) | st.sampled_from([0.0, 0.1, 1e-9, 1.7e9 + 1 / 3, 2.0**53 + 2])
_DEVICE = st.sampled_from(DEVICES)
OWNERS = st.builds(lambda device, life: Owner(device, f"{device}-{life}"), _DEVICE, st.integers(1, 2))
WORKFLOWS = st.builds(
    Workflow,
    st.sampled_from(["transcode", "index", "größer", "a b"]),
    argv=st.just(("true",)),
    version=st.integers(0, 3),
    retries=st.integers(0, 2),
    losses=st.integers(0, 2),
    rounds=st.integers(0, 2),
    priority=st.integers(-1_000_000, 1_000_000),
    heartbeat=st.just(0.25),
    timeout=st.floats(0.5, 1e5),
    backoff=st.floats(0.001, 10),
)

Step = Callable[[Run, Workflow, float], Run]


def _grant(run: Run) -> Grant:
    return run.grant or Grant(run.id, "nobody", 0)


def _assign(owner: Owner, by: str, scores: dict[str, float]) -> Step:
    return lambda run, flow, now: transitions.assign(run, owner, flow, by=by, now=now, scores=scores)


def _fail(words: str, final: bool) -> Step:
    return lambda run, flow, now: transitions.fail(run, _grant(run), words, flow, now, final=final)


def _decline(words: str, full: bool) -> Step:
    return lambda run, flow, now: transitions.decline(run, _grant(run), words, now, for_now=full)


def _release(reason: str, words: str, progress: Progress | None) -> Step:
    return lambda run, flow, now: transitions.release(run, _grant(run), reason, words, now, progress)


_CLAIM: Step = lambda run, flow, now: transitions.claim(run, _grant(run), flow, now)  # noqa: E731
_START: Step = lambda run, flow, now: transitions.start(run, _grant(run), now)  # noqa: E731
_NEXT_ROUND: Step = lambda run, flow, now: transitions.offer_again(run, flow, now)  # noqa: E731
_LET_GO: Step = lambda run, flow, now: transitions.release_hold(run, now)  # noqa: E731
_PROGRESS = st.none() | st.builds(Progress, st.integers(0, 9), st.none() | st.integers(0, 9))

STEPS: st.SearchStrategy[Step] = st.one_of(
    st.sampled_from([_CLAIM, _START, _NEXT_ROUND, _LET_GO]),
    st.builds(_assign, OWNERS, _DEVICE, st.dictionaries(_DEVICE, st.floats(0, 100), max_size=2)),
    OWNERS.map(lambda owner: lambda run, flow, now: transitions.take(run, owner, flow, now)),
    DOCUMENTS.map(lambda output: lambda run, flow, now: transitions.complete(run, _grant(run), output, now)),
    st.builds(_fail, TEXTS, st.booleans()),
    st.builds(_decline, TEXTS, st.booleans()),
    st.builds(_release, st.sampled_from(["released", "preempted", "conflict"]), TEXTS, _PROGRESS),
    TEXTS.map(lambda words: lambda run, flow, now: transitions.lose(run, flow, now, words)),
    TEXTS.map(lambda words: lambda run, flow, now: transitions.give_up(run, now, words)),
    TEXTS.map(lambda by: lambda run, flow, now: transitions.cancel(run, now, by)),
    st.builds(lambda by, why: lambda run, flow, now: transitions.pause(run, now, by, why), TEXTS, TEXTS),
    TEXTS.map(lambda by: lambda run, flow, now: transitions.resume(run, now, by)),
)
"""Steps of a run. The core refuses those that its status does not allow."""


@st.composite
def histories(draw: st.DrawFn) -> list[Run]:
    """Return the records of a run after each step, from its creation on."""
    flow = draw(WORKFLOWS)
    now = draw(TIMES)
    run = transitions.create(
        draw(NAMES),
        flow,
        draw(INPUTS),
        by=draw(TEXTS),
        now=now,
        key=draw(st.none() | NAMES),
        series=draw(st.none() | NAMES),
        device=draw(st.none() | _DEVICE),
        retry_of=draw(st.none() | NAMES),
    )
    history = [run]
    # of random steps most are refused, so the run is first assigned and worked on for a while
    usual: list[Step] = [_LET_GO, _assign(draw(OWNERS), draw(_DEVICE), {}), _CLAIM, _START]
    for step in [*usual[: draw(st.integers(0, 4))], *draw(st.lists(STEPS, max_size=8))]:
        now += draw(st.floats(0, 100))
        try:
            run = step(run, flow, now)
        except RunRefused:
            continue
        if run is not history[-1]:
            history.append(run)
    return history
