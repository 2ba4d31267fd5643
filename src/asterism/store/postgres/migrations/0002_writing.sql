-- Committing and beating: each is one call, whatever it is made of.

CREATE FUNCTION now_in_seconds() RETURNS double precision LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT extract(epoch FROM clock_timestamp())::double precision $$;


-- Raises what the client knows as Conflict.
CREATE FUNCTION refuse(what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'AS001', MESSAGE = what;
END
$$;


-- One commit of anything but runs, as part of commit_runs. `others` has lists of objects under `expected` (sessions
-- that have to be at a revision), `sessions`, `registers` and `notices`, and `uses` (blobs that a run refers to).
--
-- Rows are locked in the order of their ids, sessions before registers before runs, so that two commits wait for each
-- other at most in one direction. A session that is expected is locked: no heartbeat gets in before the commit ends.
CREATE FUNCTION commit_others(others json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT * FROM json_to_recordset(others -> 'expected') AS wanted (id text, revision bigint)
        ORDER BY id COLLATE "C"
    LOOP
        PERFORM 1 FROM sessions WHERE id = one.id AND revision = one.revision FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            PERFORM refuse('session ' || one.id);
        END IF;
    END LOOP;

    FOR one IN
        SELECT * FROM json_to_recordset(others -> 'sessions') AS new (
            id text, device text, revision bigint, state text, draining smallint, profile text, terms text,
            expected bigint
        ) ORDER BY id COLLATE "C"
    LOOP
        IF one.expected IS NULL THEN
            INSERT INTO sessions (id, device, revision, state, draining, beat_at, profile, terms)
            VALUES (one.id, one.device, one.revision, one.state, one.draining, now_in_seconds(), one.profile, one.terms)
            ON CONFLICT DO NOTHING;
        ELSE
            UPDATE sessions SET
                device = one.device, revision = one.revision, state = one.state, draining = one.draining,
                -- a heartbeat from the future was written before the clock was set back
                beat_at = least(beat_at, now_in_seconds()), profile = one.profile, terms = one.terms
            WHERE id = one.id AND revision = one.expected;
        END IF;
        IF NOT FOUND THEN
            PERFORM refuse('session ' || one.id);
        END IF;
    END LOOP;

    FOR one IN
        SELECT * FROM json_to_recordset(others -> 'registers') AS new (key text, value text, expected bigint)
        ORDER BY key COLLATE "C"
    LOOP
        IF one.expected IS NOT NULL AND one.value IS NOT NULL THEN
            UPDATE registers SET value = one.value, revision = revision + 1
            WHERE key = one.key AND revision = one.expected;
        ELSIF one.expected IS NOT NULL THEN
            DELETE FROM registers WHERE key = one.key AND revision = one.expected;
        ELSIF one.value IS NOT NULL THEN
            INSERT INTO registers (key, value, revision) VALUES (one.key, one.value, 1) ON CONFLICT DO NOTHING;
        ELSE
            PERFORM 1 WHERE NOT EXISTS (SELECT 1 FROM registers WHERE key = one.key);
        END IF;
        IF NOT FOUND THEN
            PERFORM refuse('register ' || one.key);
        END IF;
    END LOOP;

    INSERT INTO blob_uses (run, name)
    SELECT run, name FROM json_to_recordset(others -> 'uses') AS new (run text, name text)
    ORDER BY run COLLATE "C", name COLLATE "C"
    ON CONFLICT DO NOTHING;
END
$$;


-- Notices are numbered one commit after the other: who has seen number 7 will never find a new number 6.
CREATE FUNCTION add_notices(given json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock('notices'::regclass::oid::int, 0);
    INSERT INTO notices (at, run, notice)
    SELECT at, run, notice FROM json_to_recordset(given) AS new (at double precision, run text, notice text);
END
$$;


-- A run in place of the revision that is expected, and one that must not be there yet.
CREATE TYPE changed_run AS (
    id text, expected bigint, revision bigint, status text, epoch bigint, device text, session text, wish text,
    avoid text, offered smallint, due_at double precision, not_before double precision, waiting_since double precision,
    ended_at double precision, state text
);
CREATE TYPE new_run AS (
    id text, workflow text, version bigint, created_at double precision, series text, key text, priority bigint,
    pinned text, timeout double precision, input text, revision bigint, status text, epoch bigint, device text,
    session text, wish text, avoid text, offered smallint, due_at double precision, not_before double precision,
    waiting_since double precision, ended_at double precision, state text
);


-- (Not in plain SQL: until version 18 the server would plan such a function anew with every call.)
CREATE FUNCTION change_runs(given changed_run[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids text[];
BEGIN
    WITH done AS (
        UPDATE runs SET
            revision = new.revision, status = new.status, epoch = new.epoch, device = new.device,
            session = new.session, wish = new.wish, avoid = new.avoid, offered = new.offered, due_at = new.due_at,
            not_before = new.not_before, waiting_since = new.waiting_since, ended_at = new.ended_at, state = new.state
        FROM unnest(given) AS new
        WHERE runs.id = new.id AND runs.revision = new.expected
        RETURNING runs.id
    )
    SELECT array_agg(id) INTO ids FROM done;
    RETURN coalesce(ids, '{}');
END
$$;


CREATE FUNCTION add_runs(given new_run[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids text[];
BEGIN
    WITH done AS (
        INSERT INTO runs (
            id, workflow, version, created_at, series, key, priority, pinned, timeout, input,
            revision, status, epoch, device, session, wish, avoid, offered,
            due_at, not_before, waiting_since, ended_at, state
        )
        SELECT * FROM unnest(given)
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO ids FROM done;
    RETURN coalesce(ids, '{}');
END
$$;


-- Put runs. The ids of those that went through are in `done`, of those that should have been new and were not in
-- `present`. With `whole` it is all or nothing: one that does not match is refused, and with it the transaction. The
-- runs are in the order of their ids.
CREATE FUNCTION commit_runs(
    whole boolean, others json, changes changed_run[], additions new_run[], OUT done text[], OUT present text[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    added text[];
BEGIN
    done := '{}';
    present := '{}';
    IF others IS NOT NULL THEN
        PERFORM commit_others(others);
    END IF;
    IF cardinality(changes) > 0 THEN
        done := change_runs(changes);
        IF whole AND cardinality(done) < cardinality(changes) THEN
            PERFORM refuse('run ' || (SELECT min(id) FROM unnest(changes) WHERE id <> ALL (done)));
        END IF;
    END IF;
    IF cardinality(additions) > 0 THEN
        added := add_runs(additions);
        IF cardinality(added) < cardinality(additions) THEN
            present := ARRAY(
                SELECT runs.id FROM unnest(additions) AS new JOIN runs USING (id) WHERE id <> ALL (added)
            );
            IF whole AND cardinality(present) > 0 THEN
                PERFORM refuse('run ' || present[1]);
            ELSIF whole THEN
                PERFORM refuse('key ' || (SELECT min(key) FROM unnest(additions) WHERE id <> ALL (added)));
            END IF;
        END IF;
        done := done || added;
    END IF;
    IF others -> 'notices' IS NOT NULL THEN
        PERFORM add_notices(others -> 'notices');
    END IF;
END
$$;


-- One heartbeat. It is a function because of its third statement: the first may have waited for a commit that takes
-- runs away from this session, and what is read after that must be what that commit left. Within one statement it
-- would be what was there before; each statement of a volatile function sees everything that is committed.
CREATE FUNCTION beat(
    asking text, new_profile text, r_run text[], r_epoch bigint[], r_progress text[], r_tail text[],
    OUT now double precision, OUT is_draining smallint, OUT held_runs text[], OUT held_epochs bigint[],
    OUT held_statuses text[], OUT held_wishes text[]
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE sessions SET revision = revision + 1, beat_at = now_in_seconds(), profile = new_profile
    WHERE id = asking AND state = 'open'
    RETURNING draining INTO is_draining;
    IF FOUND THEN
        SELECT coalesce(array_agg(id), '{}'), coalesce(array_agg(epoch), '{}'),
            coalesce(array_agg(status), '{}'), coalesce(array_agg(wish), '{}')
        INTO held_runs, held_epochs, held_statuses, held_wishes
        FROM runs WHERE session = asking;

        IF cardinality(r_run) > 0 THEN
            INSERT INTO reports (session, run, epoch, progress, tail)
            SELECT asking, said.run, said.epoch, said.progress, said.tail
            FROM unnest(r_run, r_epoch, r_progress, r_tail) AS said (run, epoch, progress, tail)
            JOIN unnest(held_runs, held_epochs) AS held (run, epoch) USING (run, epoch)
            ON CONFLICT (session, run) DO UPDATE
            SET epoch = excluded.epoch, progress = excluded.progress, tail = excluded.tail;
        END IF;
        DELETE FROM reports WHERE session = asking AND run <> ALL (held_runs);
    END IF;
    now := now_in_seconds();
END
$$;
