"""Series of issues: where their state is kept, and how it is changed when many want to at once."""
