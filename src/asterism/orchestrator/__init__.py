"""What makes it happen: the orchestrator, devices and their executors, the event bus."""
