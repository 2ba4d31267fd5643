"""The change feed of the store in memory: numbers changes for peers, and adds up what each peer contributed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence, Set

from asterism.core.run.run import Run
from asterism.core.run.session import ENDED, Session
from asterism.store.protocol import FEED, Change, Contribution, Usage
from asterism.store.row_codec import from_text, to_text

Mark = tuple[str | None, bool]
NO_MARK: Mark = (None, False)


class Feed:
    """``left`` maps each copy to the store it is left to, and whether that has the same record. ``newest`` is the last
    number that was given."""

    def __init__(self) -> None:
        self.started = False
        self.newest = 0
        self.left: dict[str, tuple[str, bool]] = {}
        self.contributions = Contributions()
        self._numbers: dict[str, int] = {}  # of the last change of each run, in their order

    def start(self, run_ids: Iterable[str]) -> None:
        """Number all runs. Does nothing the second time."""
        if not self.started:
            self.started = True
            for run_id in run_ids:
                self.move(run_id, None)

    def move(self, run_id: str, mark: tuple[str, bool] | None) -> None:
        """Give a run that was just written the next number."""
        if self.started:
            self.newest += 1
            self._numbers.pop(run_id, None)
            self._numbers[run_id] = self.newest
            self.left.pop(run_id, None)
            if mark is not None:
                self.left[run_id] = mark

    def forget(self, run_id: str) -> None:
        self._numbers.pop(run_id, None)
        self.left.pop(run_id, None)
        self.contributions.forget(run_id)

    def after(self, number: int) -> list[tuple[str, int, Mark]]:
        found: list[tuple[str, int, Mark]] = []
        for run_id, changed in reversed(self._numbers.items()):
            if changed <= number:
                break
            found.append((run_id, changed, self.left.get(run_id, NO_MARK)))
        return found[::-1]


class Contributions:
    """Contributions of peers, by run, then by the id of the peer's store."""

    def __init__(self) -> None:
        self._by_run: dict[str, dict[str, Usage]] = {}

    @property
    def runs(self) -> Set[str]:
        return self._by_run.keys()

    def add(self, one: Contribution) -> None:
        by = self._by_run.setdefault(one.run, {})
        before = by.get(one.store, Usage())
        by[one.store] = Usage(max(before.runs, one.runs), before.bytes + one.bytes, before.blobs + one.blobs)

    def forget(self, run_id: str) -> None:
        self._by_run.pop(run_id, None)

    def usage(self, store: str) -> Usage:
        usages = [by[store] for by in self._by_run.values() if store in by]
        return Usage(*(sum(values) for values in zip(*usages, strict=True))) if usages else Usage()

    def first_from(self, store: str) -> list[str]:
        return sorted(run_id for run_id, by in self._by_run.items() if store in by and by[store].runs)


class MemoryChangeFeed:
    """The part of MemoryStore that implements ChangeFeed."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._sessions: dict[str, Session] = {}
        self._owned: dict[str, set[str]] = {}  # ids of runs, by session
        self._registers: dict[str, tuple[str, int]] = {}  # the value as text, and the revision
        self._feed = Feed()

    async def start_feed(self) -> str:
        self._feed.start(sorted(self._runs))
        text, _ = self._registers.setdefault(FEED, (to_text({"id": uuid.uuid4().hex}), 1))
        return str(from_text(text)["id"])

    async def changes(self, after: int, limit: int) -> list[Change]:
        return [Change(number, self._runs[run_id], *mark) for run_id, number, mark in self._feed.after(after)][:limit]

    async def newest(self) -> int:
        return self._feed.newest

    async def left_to(self, run_ids: Sequence[str]) -> dict[str, str]:
        return {run_id: self._feed.left[run_id][0] for run_id in run_ids if run_id in self._feed.left}

    async def copies(self, left_to: str, limit: int, after: str = "") -> list[Run]:
        found = [self._runs[run_id] for run_id, (peer, _) in sorted(self._feed.left.items()) if peer == left_to]
        return [run for run in found if not run.ended and run.id > after][:limit]

    async def judges(self) -> set[str]:
        return {peer for run_id, (peer, _) in self._feed.left.items() if not self._runs[run_id].ended}

    async def forget_sessions(self, ids: Sequence[str]) -> None:
        for name in ids:
            known = self._sessions.get(name)
            if known is not None and known.state == ENDED and not self._owned.get(name):
                del self._sessions[name]
                self._owned.pop(name, None)

    async def usage(self, store: str) -> Usage:
        return self._feed.contributions.usage(store)

    async def came_from_peers(self, run_ids: Sequence[str]) -> set[str]:
        return {one for one in run_ids if one in self._feed.contributions.runs}

    async def came_from(self, store: str) -> list[Run]:
        return [run for one in self._feed.contributions.first_from(store) if not (run := self._runs[one]).ended]

    async def kinds(self) -> set[str]:
        return {run.kind for run in self._runs.values()}
