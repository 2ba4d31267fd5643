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
