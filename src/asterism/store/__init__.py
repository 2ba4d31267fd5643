"""Stores: where runs, sessions and registers are kept, in memory, SQLite or PostgreSQL.

A store is the only way in which the processes of a fleet affect each other.

A store holds *runs* (pieces of work), *sessions* (devices that joined), *registers* (small JSON documents under a key),
*notices* (messages for people) and *blobs* (large values). Each record has a revision. ``commit`` takes a batch of
writes, each with the revision it replaces, and writes all of them or none: there is no other concurrency control.
::

    from asterism.store import PutRegister, open_store, update_register

    store = await open_store("sqlite:///fleet.db")
    await store.commit([PutRegister("greeting", {"text": "hello"}, None)])       # None: it must not exist yet
    await update_register(store, "visits", lambda count: (count or 0) + 1)
    await store.close()

==========================  ============================================================================================
``protocol``                the interfaces: ``Store``, ``ChangeFeed``, ``Watch``, and the values they exchange
``store_errors``            the errors that stores raise
``optimistic_update``       the loop that reads, changes, commits and tries again after a conflict
``url``                     from an address to an open store
``row_codec``               records as rows of a table, and back; on the way of every write
``dump_format``             a whole store as lines of JSON; backup and restore
``watches``                 waking waiters after a commit, within one process; the topics of a commit
``memory``                  the reference engine
``sqlite``                  the engine for one machine: any number of processes share a file
``postgres``                the engine for many machines
==========================  ============================================================================================

The two database engines have the same parts under the same names: ``store`` (the class), ``connection``, ``schema``
(migrations, and SQL from ``statements.sql``), ``group_commit`` (many callers, one transaction), ``queue`` (taking of
runs), ``reads`` and ``error_mapping`` (database errors as StoreErrors).

Invariants:

- A commit that returned is durable. One that raised Conflict or ValueError did nothing. After StoreUnavailable it is
  unknown whether it happened, and the caller has to look.
- No engine decides what a run may become: that is ``asterism.core.run``. An engine compares revisions.
- A heartbeat and a commit with ``ExpectSession`` exclude each other: a run is never taken from a device whose heartbeat
  has just arrived.
- Stored formats are stable: a new one comes with a migration, forward only.

To add a query, add a field to ``Query``, a condition to each engine, and a test to
``tests.laboratory.store_conformance``, which every engine has to pass. To add an engine, implement ``Store`` and run
that suite.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.store.memory import MemoryStore as MemoryStore
    from asterism.store.optimistic_update import retry_on_conflict as retry_on_conflict
    from asterism.store.optimistic_update import try_commit as try_commit
    from asterism.store.optimistic_update import update_register as update_register
    from asterism.store.postgres import PostgresStore as PostgresStore
    from asterism.store.protocol import ExpectRegister as ExpectRegister
    from asterism.store.protocol import ExpectSession as ExpectSession
    from asterism.store.protocol import Notice as Notice
    from asterism.store.protocol import PutLog as PutLog
    from asterism.store.protocol import PutPriority as PutPriority
    from asterism.store.protocol import PutRegister as PutRegister
    from asterism.store.protocol import PutRun as PutRun
    from asterism.store.protocol import PutSession as PutSession
    from asterism.store.protocol import Query as Query
    from asterism.store.protocol import Register as Register
    from asterism.store.protocol import Store as Store
    from asterism.store.protocol import StoredChunk as StoredChunk
    from asterism.store.protocol import Watch as Watch
    from asterism.store.sqlite import SqliteStore as SqliteStore
    from asterism.store.store_errors import Conflict as Conflict
    from asterism.store.store_errors import StoreBusy as StoreBusy
    from asterism.store.store_errors import StoreCorrupt as StoreCorrupt
    from asterism.store.store_errors import StoreError as StoreError
    from asterism.store.store_errors import StoreForeign as StoreForeign
    from asterism.store.store_errors import StoreFull as StoreFull
    from asterism.store.store_errors import StoreMissing as StoreMissing
    from asterism.store.store_errors import StoreNotFound as StoreNotFound
    from asterism.store.store_errors import StoreReadOnly as StoreReadOnly
    from asterism.store.store_errors import StoreUnavailable as StoreUnavailable
    from asterism.store.store_errors import StoreUnwritable as StoreUnwritable
    from asterism.store.store_errors import UnknownSchema as UnknownSchema
    from asterism.store.url import open_store as open_store

__getattr__, __dir__ = lazy_names(__name__)
