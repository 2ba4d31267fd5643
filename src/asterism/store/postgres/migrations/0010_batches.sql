-- The name of the runs to which a run belongs. Written once; null for most runs. The index has no column that changes, so
-- that a start still touches no index.

ALTER TABLE runs ADD COLUMN batch text COLLATE "C";
ALTER TYPE new_run ADD ATTRIBUTE batch text;
CREATE INDEX runs_by_batch ON runs (batch, id) WHERE batch IS NOT NULL;

CREATE OR REPLACE FUNCTION add_runs(given new_run[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids text[];
BEGIN
    WITH done AS (
        INSERT INTO runs (
            id, workflow, version, created_at, series, key, priority, pinned, timeout, input,
            revision, status, epoch, device, session, wish, avoid, offered,
            due_at, not_before, waiting_since, ended_at, state, label, batch
        )
        SELECT * FROM unnest(given)
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO ids FROM done;
    RETURN coalesce(ids, '{}');
END
$$;
