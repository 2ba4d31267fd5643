"""Two commits of Asterism side by side: the same work on both, turn by turn."""
