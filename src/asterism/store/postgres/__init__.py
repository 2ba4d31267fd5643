"""The engine in PostgreSQL (15 and later, through asyncpg): fleets on many machines share a store.

``store`` is the class ``PostgresStore``, which also checks, dumps and deletes. ``connection`` parses the URL, lends
connections and estimates the server's clock; ``schema`` applies the migrations and holds the SQL. ``group_commit``
commits for many callers in few transactions, ``queue`` takes runs, ``reads`` reads and performs heartbeats,
``notifications`` wakes watches with LISTEN and NOTIFY, ``commit_history`` notices lost commits, ``error_mapping`` turns
errors of the server, the driver and the network into StoreErrors.

Every connection goes to the server that takes writes: nothing is decided on a replica. No transaction relies on an
isolation level above READ COMMITTED: each write compares a revision.

Importing this package without asyncpg raises StoreMissing, which says what to install.
"""

from __future__ import annotations

import importlib.util

from asterism.base.startup import install_hint
from asterism.store.store_errors import StoreMissing

if importlib.util.find_spec("asyncpg") is None:
    raise StoreMissing(f"a store in PostgreSQL needs asyncpg, which is not installed: {install_hint('postgres')}")

from asterism.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
