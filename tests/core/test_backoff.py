"""The delay before another try."""

from __future__ import annotations

from random import Random

from asterism.core.backoff import retry_delay


def test_it_doubles_up_to_the_longest() -> None:
    assert [retry_delay(failures, 0.5, 3.0) for failures in (0, 1, 2, 3, 4, 10_000)] == [0.5, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_without_a_longest_one_it_stays_a_number() -> None:
    assert retry_delay(10_000, 1.0) == 2.0**62


def test_it_varies_by_half_in_both_directions() -> None:
    delays = [retry_delay(2, 1.0, 9.0, Random(seed)) for seed in range(200)]
    assert 1.0 <= min(delays) < 1.1
    assert 2.9 < max(delays) <= 3.0
