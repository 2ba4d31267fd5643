"""Fixtures of durable plans: ``stage``, in virtual time; no test may leave processes or files behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.async_tests import async_fixture
from tests.durable.durable_scenes import Stage, staged
from tests.left_behind import nothing_is_left_behind, what_is_there_before

__all__ = ["nothing_is_left_behind", "stage", "what_is_there_before"]


@async_fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage
