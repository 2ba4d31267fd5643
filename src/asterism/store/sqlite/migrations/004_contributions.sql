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
