-- A commit may depend on a register without changing it.

-- One commit of anything but runs, as part of commit_runs. `others` has lists of objects under `expected` (sessions
-- that have to be at a revision), `sessions`, `registers` (those that are `kept` have to be at a revision, and stay as
-- they are) and `notices`, and `uses` (blobs that a run refers to).
--
-- Rows are locked in the order of their ids, sessions before registers before runs, so that two commits wait for each
-- other at most in one direction. A session that is expected is locked: no heartbeat gets in before the commit ends. So
-- is a register that is kept, though several may keep it at once.
CREATE OR REPLACE FUNCTION commit_others(others json) RETURNS void LANGUAGE plpgsql AS $$
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
        SELECT * FROM json_to_recordset(others -> 'registers') AS new (
            key text, value text, expected bigint, kept boolean
        ) ORDER BY key COLLATE "C"
    LOOP
        IF one.kept THEN
            PERFORM 1 FROM registers WHERE key = one.key AND revision = one.expected FOR SHARE;
        ELSIF one.expected IS NOT NULL AND one.value IS NOT NULL THEN
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
