"""A fleet of devices: the agent of each, what it will execute and how, and the monitor that watches over them."""
