-- Runs, sessions, registers and what belongs to them.
--
-- Text that is compared has the collation "C": its order is that of the code points, as in Python. JSON is kept as
-- text: jsonb would be parsed twice and cannot hold \u0000. Times are seconds by the clock of this server.

-- Names may be long, and an index has no room for that. Two kinds with one hash would share one list of the queue, and
-- one of them might be passed over for the other; with 64 bits that does not happen in the life of a fleet.
CREATE FUNCTION kind_hash(workflow text, version bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT hashtextextended(workflow, version) $$;

CREATE FUNCTION pin_hash(device text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN device IS NULL THEN 0 ELSE hashtextextended(device, 1) END $$;

CREATE TABLE runs (
    id text COLLATE "C" PRIMARY KEY,
    workflow text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    created_at double precision NOT NULL,
    series text COLLATE "C",
    key text COLLATE "C",
    priority bigint NOT NULL,
    pinned text COLLATE "C",
    timeout double precision NOT NULL,
    input text NOT NULL,
    revision bigint NOT NULL,
    status text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    device text COLLATE "C",
    session text COLLATE "C",
    wish text,
    avoid text NOT NULL,
    offered smallint NOT NULL,
    due_at double precision,
    not_before double precision NOT NULL,
    waiting_since double precision,
    ended_at double precision,
    state text NOT NULL
) WITH (
    -- room for the next version of a row on its own page
    fillfactor = 75,
    -- the head of the queue is where the dead rows are, and every device walks over them
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Each index is partial. An update that changes none of what they mention (a start, a wish) touches no index at all.
CREATE UNIQUE INDEX runs_by_key ON runs (key) WHERE key IS NOT NULL;
CREATE INDEX runs_offered ON runs (kind_hash(workflow, version), pin_hash(pinned), (-priority), created_at, id)
    WHERE offered = 1;
CREATE INDEX runs_avoiding ON runs (id) WHERE offered = 1 AND avoid <> '';
CREATE INDEX runs_by_session ON runs (session) WHERE session IS NOT NULL;
CREATE INDEX runs_by_series ON runs (series, id) WHERE series IS NOT NULL;
CREATE INDEX runs_open ON runs (id) WHERE ended_at IS NULL;
CREATE INDEX runs_by_end ON runs (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE sessions (
    id text COLLATE "C" PRIMARY KEY,
    device text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    draining smallint NOT NULL,
    beat_at double precision NOT NULL,
    profile text NOT NULL,
    terms text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX sessions_not_ended ON sessions (id) WHERE state <> 'ended';

CREATE TABLE registers (
    key text COLLATE "C" PRIMARY KEY,
    value text NOT NULL,
    revision bigint NOT NULL
) WITH (fillfactor = 50);

-- What the owner of a run said last of its progress, in JSON. It counts while the run is the session's, at that epoch;
-- what counts no more is removed by the session's next heartbeat, or when the session is forgotten.
CREATE TABLE reports (
    session text COLLATE "C" NOT NULL,
    run text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    progress text,
    tail text NOT NULL,
    PRIMARY KEY (session, run)
) WITH (fillfactor = 50);

CREATE TABLE notices (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at double precision NOT NULL,
    run text COLLATE "C",
    notice text NOT NULL
);

CREATE INDEX notices_by_run ON notices (run, number) WHERE run IS NOT NULL;

CREATE TABLE blobs (
    name text COLLATE "C" PRIMARY KEY,
    kept_at double precision NOT NULL,
    data bytea NOT NULL
);

ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE blob_uses (
    run text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    PRIMARY KEY (run, name)
);

CREATE INDEX blob_uses_by_name ON blob_uses (name);
