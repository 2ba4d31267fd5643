"""Budgets: no more is spent than the budget allows, also by calls that overlap or die."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.plan.editor_cost import EditorCost
from asterism.durable.editor_budget import Account, Budget, InvalidBudget, Spent
from asterism.models.budget import LEAST_OUTPUT, Price, estimated_tokens, most_input, plausible_tokens, room_for_output
from asterism.models.cassette import opened

limits = st.none() | st.integers(0, 100_000)
budgets = st.builds(
    Budget,
    dollars=st.none() | st.floats(0, 100),
    tokens=limits,
    calls=st.none() | st.integers(0, 50),
    seconds=st.none() | st.floats(0, 1e4),
    tasks=limits,
    wait=st.floats(1, 1e6),
)
spents = st.builds(
    Spent,
    dollars=st.floats(0, 10),
    tokens=st.integers(0, 10_000),
    calls=st.integers(0, 5),
    seconds=st.floats(0, 100),
    tasks=st.integers(0, 20),
)
accounts = st.builds(
    Account,
    budgets,
    spents,
    st.dictionaries(st.text("abc", min_size=1, max_size=3), spents, max_size=3),
    st.dictionaries(st.text("abc ", min_size=1, max_size=3), st.integers(1, 9), max_size=3),
    st.lists(st.integers(1, 9), unique=True, max_size=3).map(tuple),
    held_for=spents,
    given=budgets,
    without_editor=st.booleans(),
    decided_by=st.text(max_size=5),
    held_since=st.none() | st.floats(0, 1e9),
)


def test_a_limit_that_a_person_lowered_stays_low_when_the_editor_is_started_again():
    initial = Budget(dollars=10.0, calls=4)
    account = opened(initial)(Account()).raised(Budget(dollars=3.0), "ann")
    for budget in (initial, Budget(), initial):
        account = opened(budget)(Account.from_json(account.to_json()))
    assert account.budget.dollars == 3.0
    account = opened(Budget(dollars=10.0, calls=8))(account)  # another budget is given
    assert (account.budget.dollars, account.budget.calls) == (3.0, 8)
    assert opened(Budget(dollars=12.0, calls=8))(account).budget.dollars == 12.0


@pytest.mark.parametrize("damage", [{"refusals": None}, {"spent": []}, {"budget": {"wait": "x"}}])
def test_a_damaged_account_is_not_read(damage):
    with pytest.raises((ValueError, TypeError)):
        Account.from_json({"budget": {}, "spent": {}, **damage})


fates = st.sampled_from(["settle", "die", "stay"])


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("$2", Budget(dollars=2.0)),
        ("$0.50 40calls", Budget(dollars=0.5, calls=40)),
        ("100ktokens, 10m, 50tasks", Budget(tokens=100_000, seconds=600.0, tasks=50)),
        ("1.5Mtokens 1call", Budget(tokens=1_500_000, calls=1)),
    ],
)
def test_a_budget_is_read_as_a_person_writes_it(text, budget):
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "2", "$", "$two", "1.5calls", "40 calls", "$2 $3", "-1calls", "lots"])
def test_anything_else_is_refused_with_examples(text):
    with pytest.raises(InvalidBudget):
        Budget.parse(text)


steps = st.tuples(st.sampled_from(["answered", "rejected", "refused"]), st.integers(0, 3))


@given(st.lists(steps, max_size=20))
def test_the_tasks_of_an_answer_are_counted_once_and_not_if_it_is_not_applied(steps):
    """A step that is repeated, as after a crash, counts once. A refused answer is not given again."""
    account, counted, refused = Account(), set(), set()
    for what, answer in steps:
        if what == "answered" and answer not in refused:
            account, _ = account.added(f"about-{answer} edits-{answer}", answer + 1), counted.add(answer)
        elif what == "rejected":
            account, _ = account.added(f"about-{answer} edits-{answer}", 0), counted.discard(answer)
        elif what == "refused":
            account = account.refused(answer, f"edits-{answer}")
            counted.discard(answer)
            refused.add(answer)
        assert account.spent.tasks == sum(answer + 1 for answer in counted) == sum(account.answers.values())
        assert set(account.refusals) == refused


@given(accounts)
@settings(max_examples=50)
def test_an_account_survives_the_store(account):
    assert Account.from_json(account.to_json()) == account


@given(
    budgets,
    st.lists(
        st.tuples(st.integers(0, 3_000), st.floats(0, 1), st.sampled_from(["settle", "die", "stay"])), max_size=30
    ),
    st.builds(Price, st.floats(0, 50), st.floats(0, 100)) | st.none(),
)
@settings(max_examples=100)
def test_honest_calls_never_spend_more_than_the_budget(budget, calls, price):
    """Calls reserve the dearest answer, and cost at most that. Some end, some die, some stay open."""
    account = Account(budget)
    for number, (reads, share, fate) in enumerate(calls):
        room = room_for_output(account, reads, price, 4_096)
        needed = Spent(
            0.0 if price is None else price.dollars(reads, max(room, LEAST_OUTPUT)), reads + max(room, LEAST_OUTPUT), 1
        )
        if account.obstacle(needed) is not None:
            continue
        account = account.reserve(str(number), needed)
        writes = int(share * room)
        if fate == "settle":
            dollars = None if price is None else price.dollars(reads, writes)
            account = account.settle(str(number), Spent.of(EditorCost("m", 1, reads, writes, dollars, 0.1)))
        elif fate == "die":
            account = account.lost([str(number)])
    for name in ("dollars", "tokens", "calls"):
        limit = getattr(budget, name)
        if limit is not None and not (name == "dollars" and price is None):
            assert getattr(account.committed, name) <= limit + 1e-6
    assert account.abandoned().spent == account.committed


def test_without_a_reservation_calls_that_overlap_would_spend_too_much():
    """The ablation: two calls that look at what is spent, and not at what is reserved, both fit."""
    account, needed = Account(Budget(calls=1)), Spent(calls=1)
    assert account.obstacle(needed) is None
    reserved = account.reserve("first", needed)
    assert reserved.obstacle(needed) == "1 of 1 call is spent"
    assert Account(reserved.budget, reserved.spent).obstacle(needed) is None


def test_a_spent_budget_says_what_is_spent():
    account = Account(Budget(dollars=2), Spent(dollars=1.9))
    assert account.obstacle(Spent(dollars=0.25)) == "$1.90 of $2.00 are spent, and $0.25 more are needed"
    assert account.obstacle(Spent(dollars=0.05)) is None


def test_an_account_says_why_it_holds_the_plan():
    account = Account(Budget(dollars=2, calls=3, tokens=100), Spent(dollars=1.9, calls=3))
    assert account.hold == ""
    assert account.held(100.0).hold == "3 of 3 calls are spent"
    assert Account(Budget(dollars=2), Spent(dollars=1.9)).held(100.0).hold == "a call may cost more than what is left"
    assert account.held(100.0).raised(Budget(calls=9)).hold == account.held(100.0).ended_editing("ann").hold == ""


@pytest.mark.parametrize(
    "release",
    [
        lambda account: account.refused(1, "edits"),
        lambda account: opened(Budget(tasks=5))(account),
        lambda account: account.raised(Budget(tasks=1)),
    ],
    ids=["a refused answer", "a larger budget", "a decision"],
)
def test_a_hold_that_has_ended_is_forgotten_and_the_next_one_lasts_as_long(release):
    budget = Budget(tasks=1, wait=100.0)
    account = Account(budget, given=budget).added("about edits", 1).held(1000.0, "why", Spent(tasks=1))
    account = release(account)
    assert (account.held_until, account.hold) == (None, "")
    assert account.held(2000.0).held_until == 2100.0


def test_a_hold_outlives_the_process():
    budget = Budget(tasks=1, wait=100.0)
    account = Account(budget, given=budget).held(1000.0, "why", Spent(tasks=2))
    assert opened(budget)(account).held_until == 1100.0
    assert account.refused(1, "edits").held_until == 1100.0  # it gave back too little


def test_a_lower_budget_at_the_next_start_counts():
    account = opened(Budget(dollars=1))(Account(Budget(dollars=2.0), given=Budget(dollars=2.0)))
    assert account.budget.dollars == 1


def test_a_person_decides_and_the_editor_continues_or_not():
    spent = Account(Budget(dollars=2, calls=9), Spent(dollars=2.0)).held(100.0, "$2.00 of $2.00 are spent")
    assert spent.held(200.0, "later").held_since == 100.0
    assert (spent.held_why, spent.held_until) == ("$2.00 of $2.00 are spent", 86_500.0)
    assert Account.from_json(spent.to_json()) == spent
    assert spent.raised(Budget(dollars=3)).held_why == spent.ended_editing("ann").held_why == ""
    raised = spent.raised(Budget(dollars=5), "ann")
    assert (raised.budget.dollars, raised.budget.calls, raised.held_since) == (5, 9, None)
    assert raised.obstacle(Spent(dollars=1)) is None
    assert spent.ended_editing("ann").without_editor
    assert not spent.ended_editing("ann").raised(Budget(calls=20), "ann").without_editor


@given(st.integers(-(10**12), 10**12), st.text(max_size=300))
@settings(max_examples=100)
def test_a_count_is_what_the_text_can_be(reported, text):
    counted = plausible_tokens(reported, text, most_input(text))
    assert len(text) / 12 <= counted <= most_input(text)
    assert counted == reported or counted == estimated_tokens(text)


@given(budgets, st.integers(0, 10_000), st.builds(Price, st.floats(0, 50), st.floats(0, 100)) | st.none())
@settings(max_examples=50)
def test_the_room_for_an_answer_is_paid_for(budget, reads, price):
    room = room_for_output(Account(budget), reads, price, 4_096)
    assert 0 <= room <= 4_096
    if room and budget.tokens is not None:
        assert reads + room <= budget.tokens
    if room and price is not None and budget.dollars is not None:
        assert price.dollars(reads, room) <= budget.dollars + 1e-6
    assert not math.isnan(room)
