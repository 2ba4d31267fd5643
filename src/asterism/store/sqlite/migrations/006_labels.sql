-- What people call a run. Written once; null for a run that nobody gave a label.

ALTER TABLE runs ADD COLUMN label TEXT;
