"""By what the issues of a series are found: the patterns and the label that whoever keeps it is run with.

They are kept with the series, in the ref that says which issue tracks it. Who comes with others does not take for
renamed what only they find.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from asterism.series.github.reports import SeriesReport


def kept_in(text: str | None, name: str) -> Mapping[str, Any]:
    """What that ref says of a series; nothing if that cannot be told."""
    try:
        data = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) and data.get("series") == name else {}


def terms_of(text: str | None, name: str) -> dict[str, str | None] | None:
    """By what the issues of a series were found by whoever keeps it; None if nobody has said so."""
    terms = kept_in(text, name).get("found_by")
    return terms if isinstance(terms, dict) else None


def whose(terms: Mapping[str, str | None] | None) -> str:
    """Why a series is left alone."""
    if terms is None:
        return "for none of its issues is found here"
    label = f" and the label {terms.get('label')!r}" if terms.get("label") else ""
    return f"for its issues are found by the pattern {terms.get('pattern')!r}{label}"


def tell_slips(reports: Iterable[SeriesReport], known: bool) -> None:
    """Of a sync that found no issue of any series. If it has kept none before either (``known``), and others keep some,
    its pattern or label is likely to be a slip."""
    reports = list(reports)
    if known or not all(one.left_alone for one in reports):
        return
    for one in reports:
        one.status, one.unknown = "unmatched", True
        one.problem = f"no open issue belongs to any series by these patterns and labels; {one.left_alone}"
