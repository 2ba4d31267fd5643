"""``asterism top``: a system, live, in the terminal."""
