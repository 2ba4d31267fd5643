"""Limits: names, what runs use, what is free, fair turns, and rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.limits import (
    LARGEST,
    MOST_USED,
    TURNS_REMEMBERED,
    Account,
    Hold,
    InvalidLimit,
    Limit,
    LimitBook,
    LimitedRuns,
    Rate,
    Shortage,
    UnknownLimit,
    check_uses,
    limit_for,
    uses_of,
    uses_problems,
    uses_text,
)

WAREHOUSE = Limit("warehouse", 4)
MAIL = Limit("mail", rate=Rate(10, 60.0))
ACCOUNTS = Limit("account/*", 1)


def book(*limits: Limit, held: dict[str, int] | None = None, now: float = 0.0, **accounts: Account) -> LimitBook:
    return LimitBook({limit.name: limit for limit in limits}, accounts, held or {}, now)


def waiting(uses: dict[str, int], turn: str = "plan:a", first: str = "1", priority: int = 0) -> LimitedRuns:
    text = uses_text(uses)
    assert text is not None
    return LimitedRuns(text, turn, None, priority, True, 1, first)


# -- names and values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [WAREHOUSE, MAIL, ACCOUNTS, Limit("both", 0, Rate(1, 0.1))])
def test_a_limit_is_read_as_it_was_written(limit: Limit) -> None:
    assert Limit.from_json(limit.to_json()) == limit


@pytest.mark.parametrize("name", ["", "/x", "x/", "a b", "a*", "{x}", "it's", "x\n", "x" * 201, "*", 7])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(InvalidLimit, match="is not a name of a limit"):
        Limit(name, 1)
    with pytest.raises(InvalidLimit, match="is not a name of a limit"):
        uses_text({name: 1})


@pytest.mark.parametrize(
    ("size", "rate"),
    [
        (None, None),
        (-1, None),
        (True, None),
        (LARGEST + 1, None),
        (None, Rate(0, 60.0)),
        (None, Rate(1, 0.01)),
        (None, Rate(1, True)),
        (None, Rate(1, "1m")),  # type: ignore[arg-type]
    ],
)
def test_values_that_no_limit_has(size: int | None, rate: Rate | None) -> None:
    with pytest.raises(InvalidLimit, match="limit 'x'"):
        Limit("x", size, rate)


def test_a_name_has_its_own_limit_or_that_of_the_longest_part_of_it() -> None:
    limits = {name: Limit(name, 1) for name in ("a/*", "a/b/*", "a/b/c")}
    assert [limit_for(limits, name) for name in ("a/b/c", "a/b/d", "a/x", "a", "b")] == [
        limits["a/b/c"],
        limits["a/b/*"],
        limits["a/*"],
        None,
        None,
    ]


def test_what_a_run_uses_is_one_text_whatever_the_order() -> None:
    assert uses_text({"b": 2, "a": 1}) == uses_text({"a": 1, "b": 2}) == '{"a":1,"b":2}'
    assert uses_of('{"a":1,"b":2}') == {"a": 1, "b": 2}
    assert uses_text({}) is None
    assert uses_of(None) == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", pytest.param("[" * 100_000, id="deep"), '{"a":0}', '{"b":1,"a":1}', '{"a": 1}']
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        uses_of(text)


def test_a_run_uses_whole_numbers_of_few_limits() -> None:
    with pytest.raises(InvalidLimit, match="a whole number of 'a'"):
        uses_text({"a": 0})
    with pytest.raises(InvalidLimit, match="at most 20 limits"):
        uses_text({f"limit{number}": 1 for number in range(MOST_USED + 1)})


def test_the_problems_of_what_a_task_uses() -> None:
    assert uses_problems({"warehouse": 1, "account/{params.customer}": 2}) == []
    assert len(uses_problems({"a b": 1, "a": "1", "{b}": 0})) == 3
    assert len(uses_problems({f"limit{number}": 1 for number in range(MOST_USED + 1)})) == 1


def test_a_use_of_an_unknown_limit_or_of_too_much_is_refused() -> None:
    limits = {limit.name: limit for limit in (WAREHOUSE, MAIL, ACCOUNTS, Limit("closed", 0))}
    check_uses(limits, {"warehouse": 4, "mail": 10, "account/7": 1, "closed": 3})
    with pytest.raises(UnknownLimit, match=r"no limit 'disk' is set\. Set it with: asterism limit set 'disk' 1$"):
        check_uses(limits, {"disk": 1})
    with pytest.raises(UnknownLimit, match=r"or one for each name below it: asterism limit set 'disk/\*' 1"):
        check_uses(limits, {"disk/7": 1})
    with pytest.raises(InvalidLimit, match="a run cannot use 5 of 'warehouse': limit 'warehouse' allows 4"):
        check_uses(limits, {"warehouse": 5})
    with pytest.raises(InvalidLimit, match="a run cannot use 11 of 'mail'"):
        check_uses(limits, {"mail": 11})


# -- what is free ------------------------------------------------------------------------------------------------------


def test_a_run_needs_room_in_all_of_its_limits() -> None:
    free = book(WAREHOUSE, ACCOUNTS, held={"warehouse": 3, "account/7": 1})
    assert free.shortages({"warehouse": 1, "account/8": 1}) == []
    assert free.shortages({"warehouse": 2, "account/7": 1, "disk": 1}) == [
        Shortage("warehouse", WAREHOUSE, 1),
        Shortage("account/7", ACCOUNTS, 0),
        Shortage("disk", None, 0),
    ]


def test_a_lowered_limit_has_no_room_until_enough_has_ended() -> None:
    assert book(Limit("warehouse", 2), held={"warehouse": 4}).shortages({"warehouse": 1})[0].free == 0


def test_a_grant_takes_room_from_the_next() -> None:
    free = book(WAREHOUSE)
    for _ in range(4):
        assert not free.shortages({"warehouse": 1})
        free.grant({"warehouse": 1}, "plan:a")
    assert free.shortages({"warehouse": 1})
    assert free.changed == {"warehouse"}
    with pytest.raises(UnknownLimit):
        free.grant({"disk": 1}, "plan:a")


# -- turns -------------------------------------------------------------------------------------------------------------


def served(free: LimitBook, groups: list[LimitedRuns], number: int) -> list[str]:
    turns = []
    for _ in range(number):
        first = next(free.in_turn(groups))
        free.grant(uses_of(first.uses), first.turn)
        turns.append(first.turn)
    return turns


def test_plans_take_turns_and_urgent_work_goes_first() -> None:
    many, few = waiting({"x": 1}, "plan:many", "1"), waiting({"x": 1}, "plan:few", "2")
    urgent = waiting({"x": 1}, "plan:urgent", "3", priority=1)
    free = book(Limit("x", 100))
    assert served(free, [few, many], 4) == ["plan:many", "plan:few", "plan:many", "plan:few"]
    assert served(free, [few, many, urgent], 2) == ["plan:urgent", "plan:urgent"]


def test_the_oldest_of_one_plan_goes_first_and_a_batch_has_a_turn_of_its_own() -> None:
    old, new = waiting({"x": 1}, first="1"), waiting({"x": 1, "y": 1}, first="2")
    batch = new._replace(batch="films", first="3")
    assert (old.turn, batch.turn) == ("plan:a", "batch films")
    assert book(Limit("x", 9), Limit("y", 9)).by_turn([batch, new, old]) == [old, new, batch]


def test_turns_are_remembered_by_the_account_and_the_last_ones_only() -> None:
    account = Account()
    for number in range(TURNS_REMEMBERED + 2):
        account.serve(f"plan:{number}")
    account.serve("plan:5")
    again = Account.from_json(account.to_json())
    assert again == account
    assert len(again.turns) == TURNS_REMEMBERED
    assert (again.turns[0], again.turns[-1]) == ("plan:2", "plan:5")
    ordered = book(Limit("x", 9), x=again).by_turn([waiting({"x": 1}, "plan:5"), waiting({"x": 1}, "plan:0", "9")])
    assert [group.turn for group in ordered] == ["plan:0", "plan:5"]


def test_a_large_run_keeps_what_is_free_for_itself() -> None:
    large, small = waiting({"warehouse": 3}, "plan:large", "1"), waiting({"warehouse": 1}, "plan:small", "2")
    assert list(book(WAREHOUSE, held={"warehouse": 2}).in_turn([small, large])) == []
    assert list(book(WAREHOUSE, held={"warehouse": 1}).in_turn([small, large])) == [large, small]
    assert list(book(WAREHOUSE, held={"warehouse": 2}).in_turn([small, large._replace(priority=-1)])) == [small]


def test_a_run_that_needs_more_than_a_limit_allows_by_now_keeps_nothing() -> None:
    large, small = waiting({"mail": 11}, "plan:large", "1"), waiting({"mail": 1}, "plan:small", "2")
    free = book(MAIL)
    assert list(free.in_turn([small, large])) == [small]
    assert free.shortages({"mail": 11}) == [Shortage("mail", MAIL, 10)]
    assert free.room_at([large]) is None


def test_a_run_that_is_short_of_two_limits_keeps_nothing() -> None:
    blocked = waiting({"warehouse": 4, "account/7": 1}, "plan:a", "1")
    small = waiting({"warehouse": 1}, "plan:b", "2")
    held = {"warehouse": 3, "account/7": 1}
    assert list(book(WAREHOUSE, ACCOUNTS, held=held).in_turn([blocked, small])) == [small]


def test_a_run_that_waits_for_its_account_keeps_the_others_free() -> None:
    blocked = waiting({"warehouse": 1, "account/7": 1}, "plan:a", "1")
    other = waiting({"warehouse": 1, "account/8": 1}, "plan:a", "2")
    assert list(book(WAREHOUSE, ACCOUNTS, held={"warehouse": 3, "account/7": 1}).in_turn([blocked, other])) == [other]


def test_what_uses_a_limit_that_is_not_set_waits() -> None:
    unknown = waiting({"disk": 1})
    assert list(book(WAREHOUSE).in_turn([unknown])) == []
    assert book(WAREHOUSE).room_at([unknown]) is None


# -- rates -------------------------------------------------------------------------------------------------------------


def test_a_rate_has_room_again_when_what_has_begun_is_older_than_its_period() -> None:
    account = Account()
    for now in (0.0, 0.5, 30.0):
        account.begin("mail", 5 if now < 30.0 else 0, Rate(10, 60.0), now)
    at_once = book(MAIL, now=30.0, mail=account)
    [shortage] = at_once.shortages({"mail": 1})
    assert (shortage.free, shortage.at) == (0, 61.0)
    assert at_once.room_at([waiting({"mail": 1}), waiting({"warehouse": 1})]) == 61.0
    assert book(MAIL, now=61.5, mail=account).shortages({"mail": 10}) == []


def test_when_a_rate_has_room_for_more_than_one() -> None:
    account, rate = Account(), Rate(10, 60.0)
    account.begin("mail", 6, rate, 0.0)
    account.begin("mail", 4, rate, 20.0)
    assert [account.free_at("mail", amount, rate, 25.0) for amount in (1, 6, 7)] == [61.0, 61.0, 81.0]
    assert account.free_at("other", 10, rate, 25.0) == 25.0


def test_the_account_forgets_what_no_longer_counts() -> None:
    account, rate = Account(), Rate(1, 60.0)
    for number in range(50):
        account.begin(f"account/{number}", 1, rate, 100.0 * number)
    assert list(account.begun) == ["account/49"]
    assert Account.from_json(account.to_json()) == account


def test_times_of_the_future_count_as_now() -> None:
    account, rate = Account(), Rate(10, 60.0)
    account.begin("mail", 10, rate, 10_000.0)
    assert account.room("mail", rate, 100.0) == 0
    account.begin("mail", 0, rate, 100.0)
    assert account.room("mail", rate, 162.0) == 10


def test_a_clock_that_was_set_back_keeps_a_rate_closed_for_one_period_at_most() -> None:
    account, rate = Account(), Rate(10, 60.0)
    account.begin("mail", 10, rate, 10_000.0)
    assert account.rewind(rate, 100.0)
    assert not account.rewind(rate, 101.0)
    assert (account.room("mail", rate, 159.0), account.room("mail", rate, 162.0)) == (0, 10)


def test_a_changed_period_counts_what_has_begun_as_begun_now() -> None:
    account, rate = Account(), Rate(10, 60.0)
    account.begin("mail", 4, rate, 0.0)
    account.recount(rate, Rate(20, 60.0), 30.0)
    assert account.room("mail", rate, 30.0) == 6
    account.recount(rate, Rate(10, 3600.0), 30.0)
    assert account.room("mail", Rate(10, 3600.0), 3000.0) == 6
    account.recount(Rate(10, 3600.0), Rate(10, 60.0), 8000.0)
    assert account.begun == {}
    account.begin("mail", 4, rate, 8000.0)
    account.recount(rate, None, 8000.0)
    assert account.begun == {}


def test_a_limit_with_size_and_rate_needs_room_in_both() -> None:
    both = Limit("mail", 1, Rate(2, 60.0))
    free = book(both)
    free.grant({"mail": 1}, "plan:a")
    assert free.shortages({"mail": 1}) == [Shortage("mail", both, 0)]
    ended = book(both, mail=free.account("mail"))
    ended.grant({"mail": 1}, "plan:a")
    [shortage] = book(both, mail=ended.account("mail")).shortages({"mail": 1})
    assert shortage.at == 61.0


@given(
    st.integers(1, 20),
    st.sampled_from([1.0, 7.0, 60.0, 3600.0]),
    st.lists(st.tuples(st.floats(0.0, 0.4), st.integers(1, 3)), max_size=60),
)
def test_no_period_has_more_beginnings_than_the_rate(
    number: int, period: float, steps: list[tuple[float, int]]
) -> None:
    rate, account, now = Rate(number, period), Account(), 1_000_000.0
    begun: list[tuple[float, int]] = []
    for share, amount in steps:
        now += share * period
        account = Account.from_json(account.to_json())
        if amount <= account.room("x", rate, now):
            account.begin("x", amount, rate, now)
            begun.append((now, amount))
        elif amount <= number:
            at = account.free_at("x", amount, rate, now)
            assert at > now
            assert account.room("x", rate, at) >= amount
    for end, _ in begun:
        assert sum(amount for at, amount in begun if end - period <= at <= end) <= number


# -- series of runs, and holds -----------------------------------------------------------------------------------------


def test_a_younger_run_of_a_series_leaves_its_turn_to_an_older_one() -> None:
    series = Limit("series/*", 1)
    older, younger = waiting({"series/a": 1}, first="1"), waiting({"series/a": 1}, first="2")
    judged = LimitBook({series.name: series}, {}, {}, 0.0, {"series/a": "1"})
    assert list(judged.in_turn([younger])) == []
    assert list(judged.in_turn([older, younger])) == [older]


def test_what_is_kept_for_somebody_else_is_taken() -> None:
    limits = book(WAREHOUSE)
    limits.keep({"warehouse": 3})
    assert list(limits.in_turn([waiting({"warehouse": 2})])) == []


@pytest.mark.parametrize("granted", [False, True])
def test_a_hold_is_judged_beside_runs(granted: bool) -> None:
    hold = Hold("h1", "nightly", "load", 2, '{"warehouse":1}', "nightly", "s1", 1.0, priority=3, granted=granted)
    assert hold.group == LimitedRuns('{"warehouse":1}', "nightly", None, 3, not granted, 1, "h1")
