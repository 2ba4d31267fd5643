"""The tree of errors and the words in them."""

from __future__ import annotations

import inspect

import pytest

from asterism.core import errors
from asterism.core.errors import (
    AsterismError,
    CycleFound,
    DuplicateTask,
    EditRejected,
    InvalidTransition,
    PlanFailed,
    RecordedError,
    UnknownTask,
    Violation,
    error_text,
    safe_repr,
)
from asterism.core.history import Entry

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_in_the_tree_and_in_the_docstring_that_draws_it(kind: type[Exception]) -> None:
    assert issubclass(kind, AsterismError)
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind.__doc__


def test_an_unknown_task_reads_like_a_sentence_although_it_is_a_key_error() -> None:
    error = UnknownTask("ghost")
    assert isinstance(error, KeyError)
    assert str(error) == "there is no task 'ghost' in the plan"
    assert error.task_id == "ghost"


def test_a_duplicate_says_what_to_do() -> None:
    error = DuplicateTask("a")
    assert str(error) == "task 'a' already exists; choose another id, or update it"
    assert error.task_id == "a"


def test_a_cycle_prints_its_path() -> None:
    error = CycleFound(["c", "a", "b", "c"])
    assert str(error) == "this dependency would close a cycle: c -> a -> b -> c"
    assert error.path == ("c", "a", "b", "c")


def test_a_rejection_lists_every_violation_with_its_edit_and_its_rule() -> None:
    error = EditRejected([Violation(1, "cycle", "that is a circle"), Violation(None, "ended", "it is over")])
    assert str(error) == (
        "the edit was rejected for 2 reasons:\n  - edit 1: that is a circle [cycle]\n  - batch: it is over [ended]"
    )


def test_a_single_reason_is_one_reason() -> None:
    assert str(EditRejected([Violation(0, "stale", "too late")])).startswith("the edit was rejected for 1 reason:\n")


def test_an_invalid_transition_tells_the_story() -> None:
    error = InvalidTransition("a", "completed", "start", [Entry(1.0, "started", "a", "laptop")])
    assert str(error) == "task 'a' is completed: it cannot start. Its story:\n  1.000 a started: laptop"
    assert str(InvalidTransition("a", "pending", "retry", [])).endswith("Its story: (nothing)")


def test_a_recorded_error_is_its_type_and_its_message() -> None:
    recorded = RecordedError.of(ValueError("no"))
    assert (recorded.kind, recorded.message, str(recorded)) == ("ValueError", "no", "ValueError: no")
    assert str(RecordedError.of(TimeoutError())) == "TimeoutError"
    assert RecordedError.of(recorded) is recorded


class Shy(Exception):
    """Does not want to be printed."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


def test_an_error_that_cannot_be_printed_is_recorded_all_the_same() -> None:
    assert error_text(Shy()) == "Shy: (its message cannot be shown)"
    assert error_text(ValueError("no")) == "ValueError: no"
    assert error_text(None) == ""


def test_a_value_is_shown_in_a_message_even_if_it_is_long_or_does_not_want_to_be() -> None:
    assert safe_repr({"a": 1}) == "{'a': 1}"
    assert len(safe_repr("x" * 10_000)) == 200
    assert safe_repr(Shy()) == "a Shy that cannot be shown"


def test_a_failed_plan_names_some_of_its_failures() -> None:
    error = PlanFailed("the plan did not complete", {f"t{number}": "failed" for number in range(7)})
    assert str(error).startswith("the plan did not complete; 't0' failed; 't1' failed; ")
    assert str(error).endswith("; 't4' failed; and 2 more")
    assert str(PlanFailed("no result", {"build": "failed: 1 error"})) == "no result; 'build' failed: 1 error"
    assert len(error.reasons) == 7
