"""The body of a tracking issue, word by word: a new wording would rewrite every tracking issue once."""

from __future__ import annotations

from asterism.core.series.machine import Series
from asterism.series.github.series_sync import OBSERVE_NOTE
from asterism.series.github.tracking_issue import body_of

ACTIVE = """\
<!-- asterism-series: RFC-093 -->
The state of the series **RFC-093**: at most one of its issues is assigned at a time, the others wait in this order. \
Asterism keeps this view; what is written here by hand is overwritten.

| place | issue |
| --- | --- |
| active | #120 |
| 1 | #121 |

```json
{
  "series": "RFC-093",
  "active_issue": 120,
  "queue": [
    121
  ],
  "since": "2023-11-14T22:13:20Z",
  "claim": "c1",
  "by": "ci",
  "lease": 3600.0,
  "lease_until": "2023-11-14T23:13:20Z",
  "updated_at": "2023-11-14T22:14:20Z",
  "version": 1,
  "revision": 2
}
```"""

PAUSED = """\
<!-- asterism-series: RFC-093 -->
The state of the series **RFC-093**: at most one of its issues is assigned at a time, the others wait in this order. \
Asterism keeps this view; what is written here by hand is overwritten.
> Asterism only observes this series: nothing is assigned or promoted by it.
> Paused by ada: holiday. Nobody is promoted until it is resumed.

| place | issue |
| --- | --- |
| active | nobody |
| 1 | #122 |

```json
{
  "series": "RFC-093",
  "active_issue": null,
  "queue": [
    122
  ],
  "paused": "by ada: holiday",
  "updated_at": "2023-11-14T22:20:00Z",
  "version": 1,
  "revision": 6
}
```"""

TOO_LONG = """\
| 100 | #100099 |
| … | and 49900 more |

The whole of it is too long for an issue: `asterism series status` says it."""


def test_the_words_of_a_tracking_issue_stay():
    start = 1_700_000_000.0
    series = Series("RFC-093").claim(120, start, "c1", 3600.0, "ci").claim(121, start + 60, "c2", None, "ada")
    assert body_of(series) == ACTIVE
    series = series.leave(120, start + 100, "ci").leave(121, start + 200, "ci").pause(start + 300, "ada", "holiday")
    assert body_of(series.claim(122, start + 400, "c3", None, "eve"), OBSERVE_NOTE) == PAUSED


def test_the_words_about_a_state_that_is_too_long_stay():
    assert body_of(Series("X", active=1, queue=tuple(range(100_000, 150_000)))).endswith(TOO_LONG)
