"""Silences the logs of simulated devices and peers, which fail all the time."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("asterism")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)
