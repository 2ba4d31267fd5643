-- The plans as lists show them. A plan is a register `plan/NAME`, its head: the trigger keeps one row here for each. The
-- columns are those by which lists are filtered. `summary` is JSON that the writer of the plan adds in the commit of each
-- step; null after a write of the head alone, until somebody reads the plan in full.
CREATE TABLE plans (
    name text COLLATE "C" PRIMARY KEY,
    created_at double precision NOT NULL,
    state text COLLATE "C",
    owner text COLLATE "C",
    cancelling boolean,
    file text COLLATE "C",
    tags text[] NOT NULL,
    summary text
) WITH (fillfactor = 50);

CREATE INDEX plans_by_creation ON plans (created_at, name);


-- Write what the head of a plan says into its row. A value of another type than that of its column is left out.
CREATE FUNCTION list_plan(key text, value text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO plans (name, created_at, state, owner, cancelling, file, tags, summary)
    SELECT
        substr(key, 6),
        CASE json_typeof(head -> 'created_at') WHEN 'number' THEN (head ->> 'created_at')::double precision ELSE 0 END,
        head ->> 'state', head ->> 'owner', head ->> 'cancelling' = 'true', head ->> 'file',
        CASE json_typeof(head -> 'tags') WHEN 'array' THEN ARRAY(SELECT json_array_elements_text(head -> 'tags'))
            ELSE '{}' END,
        NULL
    FROM (SELECT value::json AS head) AS decoded
    ON CONFLICT (name) DO UPDATE SET
        state = excluded.state, owner = excluded.owner, cancelling = excluded.cancelling, file = excluded.file,
        tags = excluded.tags, summary = NULL
$$;


CREATE FUNCTION follow_head() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM plans WHERE name = substr(OLD.key, 6);
    ELSE
        PERFORM list_plan(NEW.key, NEW.value);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER plan_written AFTER INSERT OR UPDATE ON registers FOR EACH ROW
WHEN (starts_with(NEW.key, 'plan/')) EXECUTE FUNCTION follow_head();

CREATE TRIGGER plan_removed AFTER DELETE ON registers FOR EACH ROW
WHEN (starts_with(OLD.key, 'plan/')) EXECUTE FUNCTION follow_head();

SELECT list_plan(key, value) FROM registers WHERE starts_with(key, 'plan/');


-- Write the summaries of plans. Returns how many there were; a plan that does not exist is refused.
CREATE FUNCTION put_plans(given json) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    absent text;
    number bigint;
BEGIN
    SELECT min(new.name) INTO absent FROM json_to_recordset(given) AS new (name text)
    WHERE NOT EXISTS (SELECT 1 FROM plans WHERE plans.name = new.name);
    IF absent IS NOT NULL THEN
        PERFORM refuse('plan ' || absent);
    END IF;
    UPDATE plans SET state = new.state, summary = new.summary
    FROM json_to_recordset(given) AS new (name text, state text, summary text)
    WHERE plans.name = new.name;
    GET DIAGNOSTICS number = ROW_COUNT;
    RETURN number;
END
$$;

-- The runs of one workflow, in the order of lists. A run keeps its workflow, so this costs one entry for each run.
CREATE INDEX runs_by_workflow ON runs (workflow, id);
