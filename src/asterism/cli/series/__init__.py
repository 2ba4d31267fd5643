"""Commands on series."""
