"""The reference of the HTTP API names every path, problem and limit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asterism.api import operation, plan_operations
from asterism.api.local import edit_handlers, problem_statuses
from asterism.server import endpoint, request_guard
from asterism.server.http_service import endpoints
from tests.docs import operation_tables
from tests.docs.docs_pages import ROOT

PAGE = (ROOT / "docs/reference/http-api.md").read_text("utf-8")


@pytest.mark.parametrize("page", operation_tables.PAGES, ids=lambda page: page.name)
def test_the_tables_are_up_to_date(page: Path) -> None:
    """If not, ``make reference`` writes them."""
    assert page.read_text("utf-8") == operation_tables.filled(page)


def test_every_path_is_told_and_none_that_is_gone() -> None:
    told = re.findall(r"^\| `([A-Z]+ /\S*)` \|", PAGE, re.MULTILINE)
    assert sorted(told) == sorted(f"{served.method} {served.path}" for served in endpoints())


def test_every_problem_is_told() -> None:
    for _, status, name in problem_statuses.STATUSES:
        assert f"`{name}`" in PAGE or name == "unknown-token", name
        assert str(status) in PAGE


def test_every_limit_is_told() -> None:
    for value in (
        f"{operation.LARGEST_BODY // 2**20} MiB, nested {endpoint.MAX_DEPTH} deep",
        f"{request_guard.LONGEST_HEADERS // 1024} KiB",
        f"{edit_handlers.MAX_TASKS:,}; {plan_operations.MAX_EDITS:,}",
        f"| {request_guard.EDITS_PER_MINUTE} |",
        f"| {request_guard.REQUESTS_AT_ONCE} |",
        f"{request_guard.MAX_FAILURES} a minute",
        f"{endpoint.SLOWEST_READ:.0f} s",
    ):
        assert value in PAGE
