"""The device policy: what a device executes."""
