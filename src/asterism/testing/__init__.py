"""Tools to test Asterism, and programs built on it, without waiting and without luck."""
