"""The conformance suite for stores: what every engine promises, as tests that pytest collects.

::

    from asterism.testing.store_conformance import Elsewhere, SharedStoreConformance


    class TestMyStore(SharedStoreConformance):
        async def open_store(self):              # a fresh, empty store; a test may open several
            return await MyStore.open(tempfile.mkdtemp())

        async def open_another(self, store):     # a second connection to the same store
            return await MyStore.open(store.path)

        async def elsewhere(self, store):        # how another process opens it
            return Elsewhere("my_tests:open_my_store", store.path)

``StoreConformance`` is for an engine that lives in one process: only ``open_store`` has to be there. An engine that
several processes share is a ``SharedStoreConformance``, which kills some of them too. The tests run their own event
loops and need no plugin. They close what they opened; to remove it is up to the engine's own fixtures. If an engine
spares young blobs for a while, whatever ``prune`` is asked, it has to be opened here with no such while.

Where the protocol leaves room, MemoryStore is the reference: random sequences of writes, takes and heartbeats have to
do to an engine what they do to it.
"""

from __future__ import annotations

import contextlib

from asterism.base.extras import install_hint

try:
    import hypothesis  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"asterism.testing.store_conformance needs hypothesis and pytest: {install_hint('test')}"
    ) from error

_PARTS = (
    "beating", "commits", "documents", "dumping", "feeding", "finding", "keeping", "losing",
    "model", "processes", "racing", "records", "taking", "values", "watching",
)  # fmt: skip

with contextlib.suppress(ImportError):  # so that a failed assertion in these files says what was compared
    import pytest

    pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from asterism.testing.conformance import Elsewhere  # noqa: E402
from asterism.testing.store_conformance.blob_tests import Keeping  # noqa: E402
from asterism.testing.store_conformance.commit_tests import Commits  # noqa: E402
from asterism.testing.store_conformance.document_tests import Documents  # noqa: E402
from asterism.testing.store_conformance.dump_tests import Dumping  # noqa: E402
from asterism.testing.store_conformance.engine_tests import EngineTests  # noqa: E402
from asterism.testing.store_conformance.feed_tests import Fed  # noqa: E402
from asterism.testing.store_conformance.find_tests import Finding  # noqa: E402
from asterism.testing.store_conformance.heartbeat_tests import Beating  # noqa: E402
from asterism.testing.store_conformance.model_tests import Modelled  # noqa: E402
from asterism.testing.store_conformance.orphan_tests import Losing  # noqa: E402
from asterism.testing.store_conformance.process_tests import Processes  # noqa: E402
from asterism.testing.store_conformance.race_tests import Racing  # noqa: E402
from asterism.testing.store_conformance.take_tests import Taking  # noqa: E402
from asterism.testing.store_conformance.value_tests import Values  # noqa: E402
from asterism.testing.store_conformance.watch_tests import Watching  # noqa: E402

__all__ = ["Elsewhere", "EngineTests", "SharedStoreConformance", "StoreConformance"]


class StoreConformance(
    Commits, Documents, Taking, Beating, Finding, Losing, Keeping, Dumping, Watching, Values, Racing, Fed, Modelled
):
    """What every engine promises. Override ``open_store``, and ``open_another`` if there can be two connections."""


class SharedStoreConformance(StoreConformance, Processes):
    """What an engine promises that several processes share. Override ``elsewhere`` too."""
