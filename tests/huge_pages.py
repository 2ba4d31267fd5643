"""The memory of a large process in huge pages, so that its forks are cheap.

Commands that tests run as forks, and the first command under a process guard, fork this process. A fork copies the
entry of each page of the process, and afterwards each page that the process writes is a fault. A worker of the tests
has all test files in its memory: 340 MB are 87,000 pages, and a fork takes 20 to 30 ms of processor time. In pages of
2 MB it takes a third.

Where the system has no huge pages, or none to spare, nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

import pytest

_SIZE = 2 << 20
_HUGEPAGE, _COLLAPSE = 14, 25
"""Advice of ``madvise``: the system may use huge pages here; use them now (Linux 6.1)."""

_GROWTH = 32 << 20
"""Bytes by which a process has grown when its memory is looked at again."""

_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[heap\])?$")


def use_huge_pages() -> None:
    """Use them for what this process has in its memory now."""
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        if area := _ANONYMOUS.match(line):
            first, last = -(-int(area[1], 16) // _SIZE) * _SIZE, int(area[2], 16) // _SIZE * _SIZE
            if last > first and madvise(first, last - first, _HUGEPAGE) == 0:
                madvise(first, last - first, _COLLAPSE)


def _resident() -> int:
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Plugin:
    """Looks at the memory before the first test, and before the first of a file if much has been added."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._known = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.path != self._file:
            self._file = item.path
            if _resident() - self._known > _GROWTH:
                use_huge_pages()
                self._known = _resident()
