"""The conformance suite for stores: what every engine promises, as tests that pytest collects.

::

    from asterism.testing.stores import Elsewhere, SharedStoreConformance


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

from asterism.core.extras import extra_advice

try:
    import hypothesis  # noqa: F401
except ImportError as error:
    raise ImportError(f"asterism.testing.stores needs hypothesis and pytest: {extra_advice('test')}") from error

_PARTS = (
    "beating", "commits", "documents", "dumping", "feeding", "finding", "keeping", "losing",
    "model", "processes", "racing", "records", "taking", "values", "watching",
)  # fmt: skip

with contextlib.suppress(ImportError):  # so that a failed assertion in these files says what was compared
    import pytest

    pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from asterism.testing.conforming import Elsewhere  # noqa: E402
from asterism.testing.stores.beating import Beating  # noqa: E402
from asterism.testing.stores.commits import Commits  # noqa: E402
from asterism.testing.stores.documents import Documents  # noqa: E402
from asterism.testing.stores.dumping import Dumping  # noqa: E402
from asterism.testing.stores.engine import EngineTests  # noqa: E402
from asterism.testing.stores.feeding import Fed  # noqa: E402
from asterism.testing.stores.finding import Finding  # noqa: E402
from asterism.testing.stores.keeping import Keeping  # noqa: E402
from asterism.testing.stores.losing import Losing  # noqa: E402
from asterism.testing.stores.model import Modelled  # noqa: E402
from asterism.testing.stores.processes import Processes  # noqa: E402
from asterism.testing.stores.racing import Racing  # noqa: E402
from asterism.testing.stores.taking import Taking  # noqa: E402
from asterism.testing.stores.values import Values  # noqa: E402
from asterism.testing.stores.watching import Watching  # noqa: E402

__all__ = ["Elsewhere", "EngineTests", "SharedStoreConformance", "StoreConformance"]


class StoreConformance(
    Commits, Documents, Taking, Beating, Finding, Losing, Keeping, Dumping, Watching, Values, Racing, Fed, Modelled
):
    """What every engine promises. Override ``open_store``, and ``open_another`` if there can be two connections."""


class SharedStoreConformance(StoreConformance, Processes):
    """What an engine promises that several processes share. Override ``elsewhere`` too."""
