"""The engine in a SQLite file: any number of processes on one machine share a store.

``store`` is the class ``SqliteStore``. Writes become jobs (``write_jobs``, ``queue``), which ``group_commit`` performs:
many jobs, one transaction. Reads (``reads``) run in threads. ``connection`` opens the file, refuses a damaged
write-ahead log, and notices when the file is removed or replaced; ``schema`` applies the migrations and holds the SQL;
``blob_files`` keeps large values beside the file; ``wake_fifos`` wakes the watches of other processes;
``maintenance`` checks and dumps; ``error_mapping`` turns errors of SQLite into StoreErrors.

Only the writer's connection writes, and one thread at a time uses it. An acknowledged commit is on the disk
(write-ahead log, ``synchronous=FULL``).
"""

from __future__ import annotations

from asterism.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
