-- The first `wanted` runs that some devices may have, as lock_offered finds them, without locks: the write of what is
-- taken compares revisions.
CREATE FUNCTION read_offered(
    devices text[], not_kinds text[], now double precision, avoiding text, above bigint, wanted bigint
) RETURNS SETOF runs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    kinds bigint[];
    pins bigint[];
BEGIN
    SELECT array_agg(kind), array_agg(pin) INTO kinds, pins FROM lists_of(devices, not_kinds);
    IF cardinality(kinds) = 1 THEN -- so it is in most fleets, and there is nothing to merge
        RETURN QUERY
        SELECT * FROM runs
        WHERE offered = 1 AND kind_hash(workflow, version) = kinds[1] AND pin_hash(pinned) = pins[1]
            AND not_before <= now AND strpos(avoid, avoiding) = 0 AND -priority < -above
        ORDER BY -priority, created_at, id
        LIMIT wanted;
    ELSIF cardinality(kinds) > 1 THEN
        RETURN QUERY
        SELECT runs.*
        FROM next_offered(kinds, pins, now, avoiding, above, -9223372036854775807, '-infinity', '', wanted) AS next
            JOIN runs USING (id)
        ORDER BY next.urgency, next.created_at, next.id
        LIMIT wanted;
    END IF;
END
$$;


-- Change runs that were read without locks. What another has locked is passed over, like what another has changed.
CREATE FUNCTION take_runs(given changed_run[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    free text[];
BEGIN
    SELECT array_agg(id) INTO free FROM (
        SELECT runs.id FROM unnest(given) AS new JOIN runs ON runs.id = new.id AND runs.revision = new.expected
        FOR UPDATE OF runs SKIP LOCKED
    ) AS locked;
    IF cardinality(free) = cardinality(given) THEN
        RETURN change_runs(given);
    END IF;
    RETURN change_runs(ARRAY(SELECT new FROM unnest(given) AS new WHERE new.id = ANY (free)));
END
$$;
