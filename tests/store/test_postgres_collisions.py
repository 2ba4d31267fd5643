"""Serialization failures and deadlocks: every write is repeated, whole."""

from __future__ import annotations

from asterism.core.record import replace
from asterism.store.protocol import PutPriority, PutRegister, PutRun
from tests.laboratory.store_conformance.sample_records import a_run, a_session, added, joined, offer, taking
from tests.store.postgres_fixtures import looking, opened

KITCHEN = a_session()

COLLIDE = """
CREATE SEQUENCE tries;
CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') < 4 THEN RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'could not serialize'; END IF;
    RETURN NULL;
END $$;
"""


async def test_every_write_is_repeated_after_a_serialization_failure(postgres_url: str) -> None:
    async with opened(postgres_url) as store, looking(postgres_url) as other:
        await joined(store, KITCHEN)
        await added(store, a_run(1))
        await other.execute(COLLIDE)
        for table in ("runs", "sessions", "blobs", "registers"):
            await other.execute(
                f"CREATE TRIGGER collide AFTER INSERT OR UPDATE OR DELETE ON {table} EXECUTE FUNCTION collide()"
            )
        many = [PutRun(a_run(number), None) for number in range(1000, 1200)]
        for attempt in (
            lambda: store.commit([PutRun(a_run(3), None)]),
            lambda: store.commit([PutRun(a_run(4), None), PutRegister("a", 1, None)]),
            lambda: store.commit([PutRun(replace(a_run(3), revision=2), 1), PutPriority("r0003", 7)]),
            lambda: store.commit(many),
            lambda: store.take(offer(limit=1), taking(KITCHEN)),
            lambda: store.heartbeat(KITCHEN.id, {}, ()),
            lambda: store.put_blob(b"something"),
            lambda: store.prune(2.0, 10),
        ):
            await other.execute("SELECT setval('tries', 1, false)")
            await attempt()
            assert await other.fetchval("SELECT last_value FROM tries") >= 4
        assert len((await store.heartbeat(KITCHEN.id, {}, ())).held) == 1
