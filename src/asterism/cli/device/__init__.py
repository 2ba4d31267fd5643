"""Commands on devices, and the process of a device."""
