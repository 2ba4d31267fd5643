"""Where runs are kept: one protocol, several engines."""
