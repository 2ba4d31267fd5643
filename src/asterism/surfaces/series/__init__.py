"""Series of issues, for people and programs: which register is meant, and what is shown of it."""
