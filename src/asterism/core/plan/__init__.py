"""The plan: tasks, dependencies, edits, the lock policy and the journal, as pure state machines."""
