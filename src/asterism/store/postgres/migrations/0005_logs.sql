-- What each attempt at a run printed, in chunks of lines. `first` is the number of the first line of a chunk, `lines` how
-- many it has; `said` is JSON: the lines, or a reference to the blob that holds them.
CREATE TABLE logs (
    run text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    first bigint NOT NULL,
    lines bigint NOT NULL,
    said text NOT NULL,
    PRIMARY KEY (run, epoch, first)
);


-- Write parts of logs: `drops` are ranges of chunks to delete, `chunks` are written in place of those with the same
-- number, `uses` are blobs that they refer to. With `held`, runs and epochs that a session owns, all else is left out;
-- without, a run that does not exist is refused. Returns how many chunks were written.
CREATE FUNCTION put_logs(given json, held text[], epochs bigint[]) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    absent text;
    number bigint;
BEGIN
    IF held IS NULL THEN
        SELECT min(new.run) INTO absent FROM json_to_recordset(given -> 'chunks') AS new (run text)
        WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = new.run);
        IF absent IS NOT NULL THEN
            PERFORM refuse('run ' || absent);
        END IF;
    END IF;

    DELETE FROM logs
    USING json_to_recordset(given -> 'drops') AS gone (run text, epoch bigint, low bigint, high bigint)
    WHERE logs.run = gone.run AND logs.epoch = gone.epoch AND logs.first >= gone.low AND logs.first < gone.high
        AND (held IS NULL OR EXISTS (
            SELECT 1 FROM unnest(held, epochs) AS own (run, epoch) WHERE own.run = gone.run AND own.epoch = gone.epoch
        ));

    INSERT INTO logs (run, epoch, first, lines, said)
    SELECT new.run, new.epoch, new.first, new.lines, new.said
    FROM json_to_recordset(given -> 'chunks') AS new (run text, epoch bigint, first bigint, lines bigint, said text)
    WHERE held IS NULL OR EXISTS (
        SELECT 1 FROM unnest(held, epochs) AS own (run, epoch) WHERE own.run = new.run AND own.epoch = new.epoch
    )
    ORDER BY new.run COLLATE "C", new.epoch, new.first
    ON CONFLICT (run, epoch, first) DO UPDATE SET lines = excluded.lines, said = excluded.said;
    GET DIAGNOSTICS number = ROW_COUNT;

    INSERT INTO blob_uses (run, name)
    SELECT new.run, new.name FROM json_to_recordset(given -> 'uses') AS new (run text, name text)
    ORDER BY new.run COLLATE "C", new.name COLLATE "C"
    ON CONFLICT DO NOTHING;
    RETURN number;
END
$$;
