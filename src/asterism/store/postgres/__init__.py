"""The store in PostgreSQL, for fleets: 15 and later, through asyncpg.

Importing this where asyncpg is missing raises StoreMissing, which says what to install.
"""

from __future__ import annotations

import importlib.util

from asterism.base.extras import install_hint
from asterism.store.store_errors import StoreMissing

if importlib.util.find_spec("asyncpg") is None:
    raise StoreMissing(
        f"a store in PostgreSQL is reached through asyncpg, which is not installed: {install_hint('postgres')}"
    )

from asterism.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
