"""Content in buckets, with a real server that speaks S3: what content stores promise, faults, and clear errors."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.base import content_bucket
from asterism.base.content_bucket import ContentBucket
from asterism.base.content_store import ContentFolder, ContentStore
from asterism.core.errors import AsterismError
from asterism.fleet.fleet import Fleet
from asterism.store.memory import MemoryStore
from tests.base.bucket_server import BucketServer, bucket_server

_numbers = itertools.count(1)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    with bucket_server() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bucket(server: BucketServer, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> ContentBucket:
    server.use(monkeypatch)
    name = f"bucket-{next(_numbers)}"
    server.create(name)
    return ContentBucket(name, "films/", clock)


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> ContentStore:
    """A store of each kind: what they promise is the same."""
    if request.param == "folder":
        return ContentFolder(tmp_path / "content", clock)
    bucket: ContentBucket = request.getfixturevalue("bucket")
    return bucket


def read(store: ContentStore, name: str, offset: int = 0) -> bytes | None:
    file = store.open(name, offset)
    if file is None:
        return None
    with file:
        return file.read()


# -- what every content store promises ---------------------------------------------------------------------------------


def test_content_is_named_by_its_hash_and_read_from_anywhere(store: ContentStore) -> None:
    name, size = store.put([b"one ", b"", b"two"])
    assert (name, size) == (hashlib.sha256(b"one two").hexdigest(), 7)
    assert (read(store, name), read(store, name, 4), read(store, name, 7)) == (b"one two", b"two", b"")
    empty = store.put([])
    assert read(store, empty.name) == b""
    assert sorted(store.names()) == sorted([name, empty.name])
    assert read(store, "0" * 64) is None
    assert read(store, "../../etc/passwd") is None
    store.remove("0" * 64, 10_000.0)


def test_what_breaks_off_leaves_nothing(store: ContentStore) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        store.put(chunks())
    assert list(store.names()) == []
    assert read(store, hashlib.sha256(b"half").hexdigest()) is None


def test_collection_takes_what_is_old_and_not_what_was_put_a_moment_ago(store: ContentStore, clock: Clock) -> None:
    used, unused = store.put([b"used"]).name, store.put([b"unused"]).name
    clock.now = 2000.0
    store.put([b"used"])
    assert list(store.names(kept_before=1500.0)) == [unused]
    for name in (used, unused):
        store.remove(name, 1500.0)
    store.sweep(1500.0)
    assert (read(store, used), read(store, unused)) == (b"used", None)
    store.remove(used, 2500.0)
    assert list(store.names()) == []


# -- buckets -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_bucket, "PART", 5 * 1024 * 1024)  # a bucket takes no smaller ones


def objects(bucket: ContentBucket) -> list[str]:
    """The keys of all objects below the prefix."""
    return [item["path"] for page in bucket._library.list(bucket._objects) for item in page]


@pytest.mark.usefixtures("small_parts")
def test_large_content_is_sent_in_parts(bucket: ContentBucket) -> None:
    megabyte = bytes(range(256)) * 4096
    name, size = bucket.put(megabyte for _ in range(12))
    assert size == 12 * 1024 * 1024
    assert read(bucket, name) == megabyte * 12
    assert read(bucket, name, size - 3) == b"\xfd\xfe\xff"
    assert bucket._library.head(bucket._objects, objects(bucket)[0])["e_tag"].endswith('-3"'), "three parts"


@pytest.mark.usefixtures("small_parts")
def test_a_large_upload_that_breaks_off_leaves_nothing(bucket: ContentBucket) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(11):
            yield bytes(1024 * 1024)
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        bucket.put(chunks())
    assert objects(bucket) == []


def test_stores_that_share_a_bucket_do_not_see_each_other(bucket: ContentBucket, clock: Clock) -> None:
    other = ContentBucket(bucket._bucket, "books", clock)
    name = other.put([b"page"]).name
    assert (list(bucket.names()), read(bucket, name)) == ([], None)
    assert other.location == f"s3://{bucket._bucket}/books"


async def test_a_fleet_has_a_part_of_the_bucket_that_its_setting_names(
    server: BucketServer, bucket: ContentBucket
) -> None:
    places = []
    for store in (MemoryStore(), MemoryStore()):
        async with Fleet(store) as fleet:
            await fleet.configure(artifacts=f"s3://{bucket._bucket}/our%20files")
            places.append(await fleet.artifacts())
    name = places[0].put([b"content"]).name
    assert places[0].location.startswith(f"s3://{bucket._bucket}/our files/")
    assert (list(places[0].names()), list(places[1].names())) == ([name], [])


def test_of_several_puts_the_last_whole_one_stays(bucket: ContentBucket, clock: Clock) -> None:
    for clock.now in (1000.0, 1100.0, 1200.0):
        name = bucket.put([b"same"]).name
    assert len(objects(bucket)) == 6
    broken = bucket._puts_of(name)[0]
    bucket._library.delete(bucket._objects, broken.content_key)  # as if its writer had been killed before the end
    assert read(bucket, name) == b"same"
    bucket.sweep(1150.0)
    assert [put.at for put in bucket._puts_of(name)] == [1200.0, 1100.0], "the first is superseded"
    bucket.sweep(1500.0)
    assert [put.at for put in bucket._puts_of(name)] == [1100.0]
    assert read(bucket, name) == b"same"


KILLED = """
import sys
from asterism.base import content_bucket
from asterism.base.content_bucket import ContentBucket

content_bucket.PART = 5 * 1024 * 1024
bucket = ContentBucket(sys.argv[1], "films", lambda: 1000.0)

def wait(*_: object) -> None:
    print("there", flush=True)
    sys.stdin.read()

def chunks():
    yield b"x" * 6 * 1024 * 1024
    if sys.argv[2] == "chunk":
        wait()

if sys.argv[2] == "named":
    put = bucket._library.put
    bucket.__dict__["_library"] = type("Library", (), {
        **vars(bucket._library), "put": staticmethod(lambda *args: (put(*args), wait()))
    })
bucket.put(chunks())
"""


@pytest.mark.parametrize(("at", "left"), [("chunk", 0), ("named", 1)])
def test_kill_9_during_a_put_leaves_no_content(bucket: ContentBucket, at: str, left: int) -> None:
    command = [sys.executable, "-c", KILLED, bucket._bucket, at]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGKILL)
    name = hashlib.sha256(b"x" * 6 * 1024 * 1024).hexdigest()
    assert len(objects(bucket)) == left, "a name without content is possible"
    assert read(bucket, name) is None
    bucket.remove(name, 2000.0)
    assert objects(bucket)[left and 1 :] == [] or not bucket._puts_of(name)


def overtaken(bucket: ContentBucket, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], Any]) -> bytes | None:
    """What is left of content when somebody puts it just while it is collected."""
    name = bucket.put([b"content"]).name
    remove = bucket._remove

    def removed(put: Any) -> None:
        monkeypatch.setattr(bucket, "_remove", remove)
        bucket._clock.now = 2000.0  # type: ignore[attr-defined]
        act(name)
        remove(put)

    monkeypatch.setattr(bucket, "_remove", removed)
    bucket.remove(name, 1500.0)
    return read(bucket, name)


def test_a_put_during_the_collection_stays(bucket: ContentBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert overtaken(bucket, monkeypatch, lambda _: bucket.put([b"content"])) == b"content"


def test_ablation_puts_that_share_an_object_lose_it(bucket: ContentBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_bucket.secrets, "token_hex", lambda _: "shared")
    assert overtaken(bucket, monkeypatch, lambda _: bucket.put([b"content"])) is None


# -- errors ------------------------------------------------------------------------------------------------------------


def answers(bucket: ContentBucket) -> set[str]:
    """What each operation raises."""
    operations: list[Callable[[], object]] = [
        lambda: bucket.put([b"x"]),
        lambda: bucket.put(bytes(1024 * 1024) for _ in range(20)),
        lambda: bucket.open("0" * 64),
        lambda: list(bucket.names()),
        lambda: bucket.remove("0" * 64, 1.0),
        lambda: bucket.sweep(1.0),
    ]
    texts = set()
    for operation in operations:
        with pytest.raises(OSError, match=r".") as raised:
            operation()
        texts.add(raised.value.strerror or str(raised.value))
    return texts


def test_a_missing_bucket_is_named(bucket: ContentBucket, clock: Clock) -> None:
    assert answers(ContentBucket("missing", "", clock)) == {
        "there is no bucket 'missing': create it, or set AWS_ENDPOINT_URL to where it is"
    }


def test_wrong_credentials_are_named(bucket: ContentBucket, server: BucketServer) -> None:
    server.check_credentials(True)
    try:
        [text] = answers(bucket)
    finally:
        server.check_credentials(False)
    assert text == (
        f"{bucket.location} refuses these credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be those of a "
        "user who may list, read, write and delete there"
    )


def test_missing_credentials_are_named(bucket: ContentBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # where machines of AWS find theirs
    monkeypatch.setattr(content_bucket, "RETRIES", 0)
    text = f"{bucket.location} needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    assert answers(bucket) == {text}


def test_a_server_that_is_away_is_named(bucket: ContentBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(content_bucket, "RETRIES", 0)
    [text] = answers(bucket)
    reason = "HTTP error: error sending request"
    assert text == f"{bucket.location} is out of reach: {reason}; see AWS_ENDPOINT_URL and AWS_REGION"


def test_a_missing_library_is_named(bucket: ContentBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(AsterismError, match=r"files in a bucket need obstore: .*'s3'"):
        bucket.put([b"x"])
