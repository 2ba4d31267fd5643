-- Runs and what belongs to them. What is searched for has a column; the rest of a run is JSON, in `input` and `state`.
-- The large columns come last, so that a scan over the others need not read them. Every index costs something with
-- every write: each is partial, and holds only the rows that somebody looks for.

CREATE TABLE runs (
    id            TEXT PRIMARY KEY NOT NULL,
    workflow      TEXT NOT NULL,
    version       INTEGER NOT NULL,
    created_at    REAL NOT NULL,
    series        TEXT,
    key           TEXT,
    priority      INTEGER NOT NULL,
    pinned        TEXT,
    timeout       REAL NOT NULL,
    revision      INTEGER NOT NULL,
    status        TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    device        TEXT,
    session       TEXT,
    wish          TEXT,
    avoid         TEXT NOT NULL,
    offered       INTEGER NOT NULL,
    due_at        REAL,
    not_before    REAL NOT NULL,
    waiting_since REAL,
    ended_at      REAL,
    urgency       INTEGER NOT NULL, -- the priority with its sign changed
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
