"""Keeps a peer to itself: environment variables for a session, and a directory that goes with it."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables, for this process and those it starts, and put the old ones back at the end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for all that a peer writes. Its name is short: sockets in it may not have long paths."""
    # A server that is on its way out may still write there.
    with tempfile.TemporaryDirectory(prefix="ab", ignore_cleanup_errors=True) as name:
        yield Path(name)
