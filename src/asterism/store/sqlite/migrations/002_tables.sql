-- Runs and what belongs to them. What is searched for has a column; the rest of a run is JSON, in `work`, `input` and `state`.
-- The large columns come last, so that a scan over the others need not read them. Every index costs something with
-- every write: each is partial, and holds only the rows that somebody looks for.

CREATE TABLE runs (
    id            TEXT PRIMARY KEY NOT NULL,
    workflow      TEXT NOT NULL,
    version       INTEGER NOT NULL,
    digest        TEXT NOT NULL, -- of the work
    created_at    REAL NOT NULL,
    series        TEXT,
    key           TEXT,
    priority      INTEGER NOT NULL,
    pinned        TEXT,
    timeout       REAL NOT NULL,
    label         TEXT, -- what people call it
    batch         TEXT, -- the name of the runs to which it belongs
    revision      INTEGER NOT NULL,
    status        TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    device        TEXT,
    session       TEXT,
    stop_request  TEXT,
    avoid         TEXT NOT NULL,
    offered       INTEGER NOT NULL,
    due_at        REAL,
    not_before    REAL NOT NULL,
    waiting_since REAL,
    ended_at      REAL,
    urgency       INTEGER NOT NULL, -- the priority with its sign changed
    uses          TEXT, -- of limits, as JSON
    work          TEXT NOT NULL,
    input         TEXT NOT NULL,
    state         TEXT NOT NULL
);

-- What a device with room looks at, the most urgent first. All ascending, so that one can go on in the middle of it;
-- with `offered`, which is always 1, since SQLite would look it up in the table otherwise.
CREATE INDEX runs_offered ON runs (urgency, created_at, id, offered) WHERE offered = 1;

-- What a session owns, and how long it may be silent.
CREATE INDEX runs_owned ON runs (session, timeout) WHERE session IS NOT NULL;

-- Assignments and claims that run out.
CREATE INDEX runs_due ON runs (due_at) WHERE due_at IS NOT NULL;

-- What may be forgotten one day.
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;

CREATE UNIQUE INDEX runs_key ON runs (key) WHERE key IS NOT NULL;

-- Lists of runs, in the order of lists: all of one workflow, and what few of many runs have: what has not ended, what a
-- device had last, and the runs of one series.
CREATE INDEX runs_workflow ON runs (workflow, id);
CREATE INDEX runs_open ON runs (id) WHERE ended_at IS NULL;
CREATE INDEX runs_device ON runs (device, id) WHERE device IS NOT NULL;
CREATE INDEX runs_series ON runs (series, id) WHERE series IS NOT NULL;

-- The parts of a batch. The index has all that is counted.
CREATE INDEX runs_batch ON runs (batch, id, status, ended_at, created_at) WHERE batch IS NOT NULL;

-- What uses limits. The index has all that is counted, of runs that have not ended.
CREATE INDEX runs_limited ON runs (uses, workflow, batch, priority, offered, id, session)
    WHERE uses IS NOT NULL AND ended_at IS NULL;

-- What waits for limits has 2 in `offered`: no device looks through it in the queue.
CREATE INDEX runs_waiting_for_limits ON runs (id) WHERE offered = 2;

CREATE TABLE sessions (
    id       TEXT PRIMARY KEY NOT NULL,
    device   TEXT NOT NULL,
    revision INTEGER NOT NULL,
    state    TEXT NOT NULL,
    draining INTEGER NOT NULL,
    beat_at  REAL NOT NULL,
    profile  TEXT NOT NULL,
    terms    TEXT NOT NULL
);

CREATE TABLE registers (
    key      TEXT PRIMARY KEY NOT NULL,
    value    TEXT NOT NULL,
    revision INTEGER NOT NULL
) WITHOUT ROWID;

-- How far the owner of a run says it has come. A report counts as long as its epoch is that of the run and the run is
-- owned; it is removed some time after that.
CREATE TABLE reports (
    run   TEXT PRIMARY KEY NOT NULL,
    epoch INTEGER NOT NULL,
    said  TEXT NOT NULL
) WITHOUT ROWID;

-- Numbered for ever: the number of a notice that was removed is not used again.
CREATE TABLE notices (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at     REAL NOT NULL,
    run    TEXT,
    said   TEXT NOT NULL
);

-- The changes of the runs, numbered for peers (see store/protocol.py: Feeding). Nothing is in it until the first peer
-- asks: then triggers on `runs` are made that keep it, in a store without peers there are none. Numbers are never used
-- again, since a peer remembers how far it has come. `left_to` and `same` are the marks of copies; `open` is 1 for a
-- copy of a run that has not ended.

CREATE TABLE feed (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    run     TEXT NOT NULL UNIQUE,
    left_to TEXT,
    same    INTEGER NOT NULL DEFAULT 0,
    open    INTEGER NOT NULL DEFAULT 0
);

-- What is left to a peer that may be gone.
CREATE INDEX feed_open ON feed (left_to) WHERE open = 1;

-- When this store first saw the end of a run that ended elsewhere, by its own clock. What is forgotten is judged by that:
-- the clock that dated the end may have been wrong, or its owner may have lied. It counts for the end it names; if the
-- run ends otherwise after all, that is seen anew. A run that has no row here ended here.

CREATE TABLE ends (
    run      TEXT PRIMARY KEY NOT NULL,
    ended_at REAL NOT NULL,
    seen_at  REAL NOT NULL
) WITHOUT ROWID;

CREATE INDEX ends_seen ON ends (seen_at);

-- What each peer has brought here, by the id of its store: `runs` is 1 for a run that was first heard of from it, `bytes`
-- and `blobs` are by how much the record and the large things that it refers to have grown by what it told. A run that
-- has no row here was created here.

CREATE TABLE contributions (
    run   TEXT NOT NULL,
    store TEXT NOT NULL,
    runs  INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    blobs INTEGER NOT NULL,
    PRIMARY KEY (run, store)
) WITHOUT ROWID;

CREATE INDEX contributions_of_store ON contributions (store, runs, bytes, blobs);

CREATE TRIGGER contributions_forgotten AFTER DELETE ON runs BEGIN
    DELETE FROM contributions WHERE run = old.id;
END;

-- What each attempt at a run printed, in chunks of lines. `first` is the number of the first line of a chunk, `lines` how
-- many it has; `said` is JSON: the lines, or a reference to the blob that holds them.

CREATE TABLE logs (
    run   TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    first INTEGER NOT NULL,
    lines INTEGER NOT NULL,
    said  TEXT NOT NULL,
    PRIMARY KEY (run, epoch, first)
);

CREATE TRIGGER logs_forgotten AFTER DELETE ON runs BEGIN
    DELETE FROM logs WHERE run = old.id;
END;

-- The plans as lists show them. A plan is a register `plan/NAME`, its head: each write of a head writes its row here, too
-- (not by triggers: SQLite does not trust the JSON functions there). The columns are those by which lists are filtered.
-- `summary` is JSON that the writer of the plan adds in the commit of each step; null after a write of the head alone,
-- until somebody reads the plan in full.

CREATE TABLE plans (
    name       TEXT PRIMARY KEY NOT NULL,
    created_at REAL NOT NULL,
    state      TEXT,
    owner      TEXT,
    cancelling INTEGER,
    file       TEXT,
    tags       TEXT NOT NULL,
    summary    TEXT
) WITHOUT ROWID;

CREATE INDEX plans_created ON plans (created_at, name);
