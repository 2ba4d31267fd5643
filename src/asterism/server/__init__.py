"""The server: the gateway for devices without a store."""
