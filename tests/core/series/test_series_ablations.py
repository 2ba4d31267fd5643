"""Each safeguard of a series, switched off, is noticed by the random stories of ``series_machine``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from asterism.core.record import replace
from asterism.core.series import machine
from asterism.core.series.machine import Item, Live, Series, UnreadableSeries
from tests.core.series.series_machine import SeriesMachine

Patch = pytest.MonkeyPatch

HUNT = settings(
    max_examples=500,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # to find the failure is enough
    suppress_health_check=list(HealthCheck),
)


def hunted() -> None:
    with pytest.raises((AssertionError, UnreadableSeries)):
        run_state_machine_as_test(SeriesMachine, settings=HUNT)


def spoil(patch: Patch, name: str, change: Any) -> None:
    """``change`` gets the series before, what the operation made of it, and its arguments."""
    right = getattr(Series, name)
    patch.setattr(Series, name, lambda self, *args, **options: change(self, right(self, *args, **options), *args))


@pytest.mark.long
def test_a_newcomer_that_overtakes_the_queue_is_noticed(monkeypatch: Patch) -> None:
    def overtaking(before: Series, after: Series, item: Item, now: float, *rest: Any) -> Series:
        free = before.active is None and before.paused is None
        return after.promote(now) if not free else replace(after, active=item, queue=before._without(item))

    spoil(monkeypatch, "claim", overtaking)
    hunted()


def test_a_second_active_item_in_place_of_the_first_is_noticed(monkeypatch: Patch) -> None:
    spoil(monkeypatch, "claim", lambda before, after, item, now, *rest: before._activated(item, now, None, None, None))
    hunted()


def test_an_item_that_is_queued_twice_is_noticed(monkeypatch: Patch) -> None:
    def twice(before: Series, after: Series, item: Item, now: float, *rest: Any) -> Series:
        return before._changed(now, queue=(*before.queue, item)) if item in before.queue else after

    spoil(monkeypatch, "claim", twice)
    hunted()


def test_an_active_item_that_stays_in_the_queue_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Series, "_without", lambda self, item: self.queue)
    hunted()


def test_a_promotion_during_a_pause_is_noticed(monkeypatch: Patch) -> None:
    def anyway(before: Series, after: Series, now: float, *rest: Any) -> Series:
        return before.resume(now)._activated(before.queue[0], now, None, None, None) if before.queue else after

    spoil(monkeypatch, "promote", anyway)
    hunted()


def test_a_promotion_over_somebody_who_is_active_is_noticed(monkeypatch: Patch) -> None:
    def over(before: Series, after: Series, now: float, *rest: Any) -> Series:
        return before._activated(before.queue[0], now, None, None, None) if before.queue else after

    spoil(monkeypatch, "promote", over)
    hunted()


@pytest.mark.long
def test_a_lease_that_ends_too_early_is_noticed(monkeypatch: Patch) -> None:
    spoil(monkeypatch, "expire", lambda before, after, now: before.release(before.active or 0, now))
    hunted()


@pytest.mark.long  # many examples do not wait for the end of a lease
def test_a_lease_that_never_ends_is_noticed(monkeypatch: Patch) -> None:
    spoil(monkeypatch, "expire", lambda before, after, now: before)
    hunted()


def test_a_lease_that_nobody_asked_for_is_noticed(monkeypatch: Patch) -> None:
    def leased(before: Series, after: Series, now: float, *rest: Any) -> Series:
        return after if after is before else replace(after, lease=60.0, lease_until=now + 60.0)

    spoil(monkeypatch, "promote", leased)
    hunted()


def test_a_lease_that_is_forgotten_while_one_waits_is_noticed(monkeypatch: Patch) -> None:
    right = Series._changed
    monkeypatch.setattr(
        Series, "_changed", lambda self, now, **changes: replace(right(self, now, **changes), leases=())
    )
    hunted()


def test_a_rebuild_that_makes_somebody_active_during_a_pause_is_noticed(monkeypatch: Patch) -> None:
    right = Series.rebuild

    def anyway(self: Series, live: list[Live], now: float) -> Series:
        after = right(replace(self, paused=None), live, now)
        return self if after == replace(self, paused=None) else replace(after, paused=self.paused)

    monkeypatch.setattr(Series, "rebuild", anyway)
    hunted()


@pytest.mark.long
def test_a_renewal_by_somebody_else_is_noticed(monkeypatch: Patch) -> None:
    right = Series.renew
    monkeypatch.setattr(Series, "renew", lambda self, item, now, until, claim=None: right(self, item, now, until))
    hunted()


def test_a_rebuild_that_takes_it_from_who_has_it_is_noticed(monkeypatch: Patch) -> None:
    right = Series.rebuild
    monkeypatch.setattr(Series, "rebuild", lambda self, live, now: right(replace(self, active=None), live, now))
    hunted()


def test_a_rebuild_that_loses_somebody_is_noticed(monkeypatch: Patch) -> None:
    spoil(monkeypatch, "rebuild", lambda before, after, live, now: replace(after, queue=after.queue[:2]))
    hunted()


def test_found_together_but_queued_in_the_order_of_the_scan_is_noticed(monkeypatch: Patch) -> None:
    def as_found(before: Series, after: Series, scanned: list[tuple[Item, int]], now: float) -> Series:
        new = [item for item, _ in scanned if before.position(item) is None]
        return after if after is before else replace(after, queue=(*before.queue, *new))

    spoil(monkeypatch, "enqueue", as_found)
    hunted()


def test_a_change_that_is_not_counted_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Series, "_changed", lambda self, now, **changes: replace(self, updated_at=now, **changes))
    hunted()


def test_a_document_that_forgets_the_pause_is_noticed(monkeypatch: Patch) -> None:
    right = machine.encode
    monkeypatch.setattr(machine, "encode", lambda series, form: right(replace(series, paused=None), form))
    hunted()
