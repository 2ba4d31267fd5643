"""``dbos`` with steps that are plain functions, one after the other whatever the graph: quick where a step does
nothing, and no two steps at a time."""

from contextlib import AbstractContextManager
from pathlib import Path

from bench.durable.peers import Measure, dbos_steps

NAME = "dbos, one by one"
SETTINGS = "the same with steps that are plain functions, one after the other in every shape"
LIMIT = dbos_steps.LIMIT
VERSION = dbos_steps.VERSION


def session(folder: Path) -> AbstractContextManager[Measure]:
    return dbos_steps.session(folder, sync=True)
