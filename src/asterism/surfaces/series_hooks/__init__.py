"""The webhook endpoint of series on GitHub: what is delivered leads to a sync within a second."""
