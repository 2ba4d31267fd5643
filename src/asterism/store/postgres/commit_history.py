"""What this process saw committed, and whether the database still has it.

A failover to a standby that lagged behind drops the last commits of the old server, and nothing in the database says
so. So each commit returns a position in the write-ahead log, which is before its commit record, the timeline of that
log, and its transaction id. A connection that is opened later asks the server about the last of them:

* A server of the same history is at or beyond every position.
* The write-ahead log of a promoted standby has a new timeline, which begins where the standby had got to. A position
  of an earlier timeline beyond that is lost. Others may have reused its transaction id since.
* If the commit record alone is missing, the standby knows the transaction id and nobody reuses it: it counts as
  aborted.

A server that was promoted and then restarted no longer says where its timeline begins; transaction ids alone decide.
After two promotions the server says where the last timeline begins, not the one before.

Behind a pooler the server may change without a new connection. A commit on another timeline shows that, and the server
is asked every second, since reads show nothing.

**In doubt.** After a broken connection the outcome of a commit is unknown, and the caller looks. What it finds may be
on the disk of this server only: a commit that waits for a synchronous standby becomes visible when the wait is
cancelled. So before the next statement an empty transaction is committed. When that returns, everything before it in
the write-ahead log is on the standby as well.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

import asyncpg

from asterism.store.protocol import Notice
from asterism.store.row_codec import to_text
from asterism.store.store_errors import StoreCorrupt

log = logging.getLogger(__name__)

REMEMBERED = 64
"""How many commits are remembered: more than are on their way at the same time."""

INTERVAL = 1.0
"""How often the server is asked behind a pooler, in seconds."""

VERIFY = """
SELECT cluster, timeline, pg_last_wal_replay_lsn() IS NOT NULL, (
    SELECT count(*) FROM (
        SELECT '0/0'::pg_lsn + bytes::numeric AS position, number::xid8 AS transaction, timeline
        FROM unnest($2::text[], $3::text[], $4::text[]) AS rows (bytes, number, timeline)
    ) AS seen
    WHERE position > pg_current_wal_insert_lsn()
        OR (seen.timeline <> here.timeline AND position > pg_last_wal_replay_lsn())
        OR CASE WHEN transaction < pg_snapshot_xmax(pg_current_snapshot())
            THEN pg_xact_status(transaction) = 'aborted' ELSE true END
)
FROM (
    SELECT (SELECT system_identifier FROM pg_control_system()) AS cluster,
        left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) AS timeline,
        CASE WHEN $1 THEN pg_logical_emit_message(true, 'asterism', '') END AS settled
) AS here
"""
"""All arrays are of texts: the driver would ask the server about others, such as ``xid8[]``, on each new connection,
which takes longer than all else that it does."""


class CommitHistory:
    """The last commits that were acknowledged to this process. ``shown`` is the address of the store, for messages."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._seen: deque[tuple[str, str, str]] = deque(maxlen=REMEMBERED)
        self._cluster: int | None = None
        self._timeline = ""
        self._doubts = self._settled = 0
        self._verified_at = float("-inf")
        self._loss: tuple[str, str] | None = None
        """What is lost, and what to do."""

    @property
    def in_doubt(self) -> bool:
        """Whether a commit has an unknown outcome, and what is read may not be on the standby."""
        return self._settled < self._doubts

    def doubt(self) -> None:
        self._doubts += 1

    def acknowledged(self, position: int | None, transaction: int | None, timeline: str | None) -> None:
        """Remember a commit that returned. A transaction that wrote nothing has no id."""
        if position is not None and transaction is not None and timeline is not None:
            self._seen.append((str(position), str(transaction), timeline))
            if timeline != self._timeline:
                self.doubt()

    def is_due(self, *, pooled: bool) -> bool:
        """Whether a connection that was verified once has to be verified again."""
        return self.in_doubt or (pooled and time.monotonic() - self._verified_at > INTERVAL)

    def refuse_lost(self) -> None:
        """Raises StoreCorrupt if acknowledged commits are missing."""
        if self._loss is not None:
            what, advice = self._loss
            raise StoreCorrupt(f"{self._shown}: {what}", advice)

    async def _leave_notice(self, connection: Any, what: str) -> None:
        """Leave a notice for people in the database that lacks the commits, if it has a store."""
        try:
            at = await connection.fetchval("SELECT now_in_seconds()")
            rows = [{"at": at, "run": None, "notice": to_text(Notice(at, "restored", what).to_json())}]
            await connection.execute("SELECT add_notices($1)", to_text(rows))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("%s: no notice of missing commits was left: %s", self._shown, error)

    async def verify(self, connection: Any) -> None:
        """Raises StoreCorrupt if the server lacks an acknowledged commit, and errors of the driver."""
        self.refuse_lost()
        doubts, began = self._doubts, time.monotonic()
        columns = [list(column) for column in zip(*self._seen, strict=True)] or [[], [], []]
        cluster, timeline, knows_its_beginning, missing = await connection.fetchrow(VERIFY, self.in_doubt, *columns)
        self.refuse_lost()  # another connection was faster
        if self._seen and self._cluster not in (None, cluster):
            self._loss = "this is another database cluster", "restart the processes if that was meant"
        elif missing:
            self._loss = (
                "this store was restored from an older copy, or a standby that lagged behind was promoted: "
                f"{missing} of the last {len(columns[0])} commits of a process are missing",
                "restore the newer copy, or restart this process to continue with what the database has",
            )
        if self._loss is not None:
            await self._leave_notice(connection, self._loss[0])
            self.refuse_lost()
        if self._timeline not in ("", timeline):
            is_next = int(timeline, 16) == int(self._timeline, 16) + 1
            log.warning(
                "%s: another server has taken over; %s",
                self._shown,
                "it has all that this process saw committed"
                if is_next and knows_its_beginning
                else "whether it has all that this process saw committed cannot be told",
            )
        self._cluster, self._timeline = cluster, timeline
        self._settled = max(self._settled, doubts)
        self._verified_at = max(self._verified_at, began)
