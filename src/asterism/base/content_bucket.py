"""A content store in an S3-compatible bucket (the extra ``s3``).

A bucket renames nothing and deletes without asking whether an object has changed. So no two puts share an object. Each
put writes the content under an id of its own, and an empty object that names it::

    names/ab/abcdef…/1763495000.123456-5f3e…    when it was put, and the id
    content/5f3e…                               the content

Collection removes single puts that are old, never a name: what somebody puts at that moment is another pair of objects.
The name is written just before the content appears, which a
multipart upload does at once and whole; a name without its content counts as nothing, and content without a name never
exists. Of several puts of one name, ``sweep`` leaves the last.

The requests are signed with the hash of their bodies, so that the bucket refuses what was changed on its way. Addresses
and credentials come from the environment, as for the tools of AWS. A process that is killed during an upload leaves
parts that cannot be seen, and that a rule of the bucket removes (``AbortIncompleteMultipartUpload``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

from asterism.base.content_store import NAME, Content
from asterism.base.startup import install_hint
from asterism.core.errors import AsterismError

PART = 16 * 1024 * 1024
"""How many bytes are in one request. A bucket takes 10,000 parts, so content has 160 GB at most."""

PARTS_AT_ONCE = 4
"""How many parts of one upload are in memory and under way at once."""

REQUEST_TIME, RETRIES, RETRY_TIME = "120s", 5, timedelta(seconds=30)
"""How long one request may take, how often one that fails is tried again, and for how long."""


class _Put(NamedTuple):
    """One put: its name, when it was put, and the id of its content."""

    name: str
    at: float
    id: str

    @property
    def name_key(self) -> str:
        return f"names/{self.name[:2]}/{self.name}/{self.at:017.6f}-{self.id}"

    @property
    def content_key(self) -> str:
        return f"content/{self.id}"


class ContentBucket:
    """The content below ``prefix`` in a bucket. ``clock`` gives the times of puts."""

    def __init__(self, bucket: str, prefix: str, clock: Callable[[], float]) -> None:
        self._bucket, self._prefix, self._clock = bucket, prefix.strip("/"), clock

    @property
    def location(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @cached_property
    def _library(self) -> Any:
        try:
            import_module("obstore.store")
            return import_module("obstore")
        except ImportError:
            raise AsterismError(f"files in a bucket need obstore: {install_hint('s3')}") from None

    @cached_property
    def _objects(self) -> Any:
        return self._library.store.S3Store(
            self._bucket,
            prefix=self._prefix or None,
            client_options={"allow_http": True, "connect_timeout": "10s", "timeout": REQUEST_TIME},
            retry_config={"max_retries": RETRIES, "retry_timeout": RETRY_TIME},
        )

    # -- to keep -----------------------------------------------------------------------------------------------------

    def put(self, chunks: Iterable[bytes]) -> Content:
        key, hashed, size = secrets.token_hex(16), hashlib.sha256(), 0
        with self._clear_errors():
            upload = self._library.open_writer(
                self._objects, f"content/{key}", buffer_size=PART, max_concurrency=PARTS_AT_ONCE
            )
            with upload:  # which leaves nothing if it is left by an exception
                for chunk in chunks:
                    hashed.update(chunk)
                    size += len(chunk)
                    upload.write(chunk)
                put = _Put(hashed.hexdigest(), self._clock(), key)
                self._library.put(self._objects, put.name_key, b"")
        return Content(put.name, size)

    # -- to read -----------------------------------------------------------------------------------------------------

    def open(self, name: str, offset: int = 0) -> BinaryIO | None:
        with self._clear_errors():
            for put in self._puts_of(name):
                with contextlib.suppress(FileNotFoundError):
                    return self._file(put, offset)
        return None

    def _file(self, put: _Put, offset: int) -> BinaryIO:
        reader = self._library.open_reader(self._objects, put.content_key, buffer_size=PART)
        reader.seek(offset)
        return io.BufferedReader(_BucketFile(reader, self._clear_errors))

    # -- to collect --------------------------------------------------------------------------------------------------

    def is_new(self) -> bool:
        return False

    def names(self, kept_before: float = float("inf")) -> Iterator[str]:
        for name, puts in self._by_name():
            if puts[0].at < kept_before:
                yield name

    def remove(self, name: str, kept_before: float) -> None:
        with self._clear_errors():
            for put in self._puts_of(name):
                if put.at < kept_before:
                    self._remove(put)

    def sweep(self, kept_before: float) -> None:
        for _, puts in self._by_name():
            if len(puts) > 1:
                with self._clear_errors():
                    last = next(filter(self._is_whole, puts), None)
                    for put in puts:
                        if put != last and put.at < kept_before:
                            self._remove(put)

    def _remove(self, put: _Put) -> None:
        """The content first: what has no name would be found by nobody."""
        self._library.delete(self._objects, put.content_key)
        self._library.delete(self._objects, put.name_key)

    def _is_whole(self, put: _Put) -> bool:
        try:
            self._library.head(self._objects, put.content_key)
        except FileNotFoundError:
            return False
        return True

    def _by_name(self) -> Iterator[tuple[str, list[_Put]]]:
        """All puts by their names, the last one first. A bucket lists its keys in order."""
        for name, puts in groupby(self._puts_below("names"), lambda put: put.name):
            yield name, sorted(puts, reverse=True)

    def _puts_of(self, name: str) -> list[_Put]:
        """The puts of a name, the last one first."""
        if NAME.fullmatch(name) is None:
            return []
        return sorted(self._puts_below(f"names/{name[:2]}/{name}"), reverse=True)

    def _puts_below(self, prefix: str) -> Iterator[_Put]:
        with self._clear_errors():
            for page in self._library.list(self._objects, prefix):
                for item in page:
                    name, _, last = item["path"].rpartition("/")
                    at, _, key = last.partition("-")
                    yield _Put(name.rpartition("/")[2], float(at), key)

    # -- errors ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Raise OSError for what the bucket answers, with a text that says what to do."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" not in str(error):
                raise
            raise self._problem(str(error)) from None
        except self._library.exceptions.BaseError as error:
            raise self._problem(str(error)) from None

    def _problem(self, error: str) -> OSError:
        if "NoSuchBucket" in error:
            return OSError(f"there is no bucket {self._bucket!r}: create it, or set AWS_ENDPOINT_URL to where it is")
        if "/latest/" in error:  # they were looked for where machines of AWS find theirs
            return OSError(f"{self.location} needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        first = error.partition("\n")[0]
        if "403 Forbidden" in first or "401 Unauthorized" in first:
            return OSError(
                f"{self.location} refuses these credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be those "
                "of a user who may list, read, write and delete there"
            )
        reason = first.rpartition(" - ")[2]
        text = f"{self.location} is out of reach: {reason}; see AWS_ENDPOINT_URL and AWS_REGION"
        return OSError(errno.EIO, text)  # another device, or a later attempt, may reach it


class _BucketFile(io.RawIOBase):
    """Content in a bucket as a file that can be read."""

    def __init__(self, reader: Any, clear_errors: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._reader, self._clear_errors = reader, clear_errors

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._clear_errors():
            data = memoryview(self._reader.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)
