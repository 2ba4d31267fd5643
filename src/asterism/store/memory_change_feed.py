"""The changes of a store in memory, numbered for its peers once one of them has asked; and what they brought."""

from __future__ import annotations

from collections.abc import Iterable, Set

from asterism.store.protocol import Contribution, Usage

Mark = tuple[str | None, bool]
NO_MARK: Mark = (None, False)


class Feed:
    """``left`` are the copies: to whom each is left, and whether he has the same. ``newest`` is the last number."""

    def __init__(self) -> None:
        self.started = False
        self.newest = 0
        self.left: dict[str, tuple[str, bool]] = {}
        self.contributions = Contributions()
        self._numbers: dict[str, int] = {}  # of the last change of each run, in their order

    def start(self, run_ids: Iterable[str]) -> None:
        """Number what there is. The second time nothing happens."""
        if not self.started:
            self.started = True
            for run_id in run_ids:
                self.move(run_id, None)

    def move(self, run_id: str, mark: tuple[str, bool] | None) -> None:
        """It was written: it is the last one now."""
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
    """By run, then by the store of the peer."""

    def __init__(self) -> None:
        self._brought: dict[str, dict[str, Usage]] = {}

    @property
    def runs(self) -> Set[str]:
        return self._brought.keys()

    def add(self, one: Contribution) -> None:
        by = self._brought.setdefault(one.run, {})
        before = by.get(one.store, Usage())
        by[one.store] = Usage(max(before.runs, one.runs), before.bytes + one.bytes, before.blobs + one.blobs)

    def forget(self, run_id: str) -> None:
        self._brought.pop(run_id, None)

    def usage(self, store: str) -> Usage:
        brought = [by[store] for by in self._brought.values() if store in by]
        return Usage(*(sum(values) for values in zip(*brought, strict=True))) if brought else Usage()

    def first_from(self, store: str) -> list[str]:
        return sorted(run_id for run_id, by in self._brought.items() if store in by and by[store].runs)
