"""Documents are read from JSON by the types of their fields."""

from __future__ import annotations

import pytest

from asterism.api.document_codec import NotADocument, read_document
from asterism.api.documents import SeriesState

STATE = {"series": "a", "active_issue": None, "queue": [3], "updated_at": "", "version": 1, "revision": 1}


def test_pairs_are_read() -> None:
    assert read_document(SeriesState, {**STATE, "leases": [[3, 60]]}).leases == [(3, 60.0)]


@pytest.mark.parametrize("leases", [[[3]], [3], [["3", 60.0]]])
def test_what_is_no_pair_is_refused(leases: object) -> None:
    with pytest.raises(NotADocument):
        read_document(SeriesState, {**STATE, "leases": leases})
