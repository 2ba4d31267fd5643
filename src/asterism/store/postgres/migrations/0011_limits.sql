-- What a run uses of limits, as JSON text. Written once; null for most runs. A run that waits for its limits has 2 in
-- `offered`. The index is of runs that have not ended.

ALTER TABLE runs ADD COLUMN uses text COLLATE "C";
ALTER TYPE new_run ADD ATTRIBUTE uses text;
CREATE INDEX runs_limited ON runs (uses, workflow, batch, priority, offered, id) WHERE uses IS NOT NULL AND ended_at IS NULL;
CREATE INDEX runs_waiting_for_limits ON runs (id) WHERE offered = 2;

CREATE OR REPLACE FUNCTION add_runs(given new_run[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids text[];
BEGIN
    WITH done AS (
        INSERT INTO runs (
            id, workflow, version, created_at, series, key, priority, pinned, timeout, input,
            revision, status, epoch, device, session, wish, avoid, offered,
            due_at, not_before, waiting_since, ended_at, state, label, batch, uses
        )
        SELECT * FROM unnest(given)
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO ids FROM done;
    RETURN coalesce(ids, '{}');
END
$$;
