"""One pipeline, written for Asterism and for Prefect: lines, time to the first result, cost of a task."""
