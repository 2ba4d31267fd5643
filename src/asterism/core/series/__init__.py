"""Series of issues: one active issue and a queue, as a pure state machine."""
