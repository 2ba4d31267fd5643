"""The conformance suite for stores: what every engine promises, as tests that pytest collects.

::

    from tests.laboratory.store_conformance import ProcessOpener, SharedStoreConformance


    class TestMyStore(SharedStoreConformance):
        async def open_store(self):              # a fresh, empty store; a test may open several
            return await MyStore.open(tempfile.mkdtemp())

        async def open_another(self, store):     # a second connection to the same store
            return await MyStore.open(store.path)

        async def process_opener(self, store):   # how another process opens it
            return ProcessOpener("my_tests:open_my_store", store.path)

``StoreConformance`` is for an engine that lives in one process, and needs only ``open_store``. For an engine that
several processes share use ``SharedStoreConformance``, which also kills some of them. The tests run their own event
loops and need no plugin. They close the stores that they open; removing their data is up to the fixtures of the engine.
An engine that never prunes young blobs has to be opened without that protection.

Where the protocol leaves room, MemoryStore is the reference: random sequences of writes, takes and heartbeats must have
the same effect on an engine as on it.

A test is a plain ``async def`` method of a class in one of the ``…_tests`` modules; its parameters say what it gets
(``StoreTests``). ``sample_records`` makes runs and sessions; ``store_process`` is the program that tests of several
processes start. Add a class of tests to ``StoreConformance`` below.
"""

from __future__ import annotations

import pytest

_TESTS = (
    "concurrency_tests", "maintenance_tests", "model_tests", "query_tests", "record_tests", "sample_records",
    "session_tests",
)  # fmt: skip

# so that pytest shows what a failed assertion in these modules compared
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _TESTS))

# ruff: noqa: E402
from tests.laboratory.conformance import ProcessOpener
from tests.laboratory.store_conformance.concurrency_tests import ProcessTests, RaceTests
from tests.laboratory.store_conformance.maintenance_tests import DumpTests, FeedTests, RetentionTests
from tests.laboratory.store_conformance.model_tests import ModelTests
from tests.laboratory.store_conformance.query_tests import FindTests, LimitTests, OrphanTests, TakeTests
from tests.laboratory.store_conformance.record_tests import CommitTests, LogTests, RegisterTests, ValueTests
from tests.laboratory.store_conformance.sample_records import StoreTests
from tests.laboratory.store_conformance.session_tests import HeartbeatTests, WatchTests

__all__ = ["ProcessOpener", "SharedStoreConformance", "StoreConformance", "StoreTests"]


class StoreConformance(
    CommitTests,
    RegisterTests,
    TakeTests,
    HeartbeatTests,
    FindTests,
    OrphanTests,
    RetentionTests,
    DumpTests,
    WatchTests,
    ValueTests,
    RaceTests,
    FeedTests,
    LogTests,
    LimitTests,
    ModelTests,
):
    """What every engine promises. Override ``open_store``, and ``open_another`` if there can be two connections."""


class SharedStoreConformance(StoreConformance, ProcessTests):
    """What an engine promises that several processes share. Override ``process_opener`` too."""
