"""A plan of decorated functions, whose results have types: mypy checks this file, and a test runs it."""

from __future__ import annotations

from typing import assert_type

from asterism import Constellation, Result, Task

plan = Constellation("release")


@plan.task
async def fetch() -> list[str]:
    return ["main.c"]


@plan.task(retries=2)
def build(fetch: list[str]) -> int:
    return len(fetch)


@plan.task(retries=2)
async def pack(build: int) -> float:
    return build / 2


count = plan.add(Task[str]("count", argv=("echo", "one")))


def check(result: Result) -> None:
    assert assert_type(result[fetch], list[str]) == ["main.c"]
    assert assert_type(result[build], int) == 1
    assert assert_type(result[pack], float) == 0.5
    assert assert_type(result[count], str) == "one"
