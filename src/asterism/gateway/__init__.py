"""Devices without a store, which reach their fleet through a server: both halves.

The device's half:

``gateway_connection``  what a device asks of its fleet, through a server instead of a store
``gateway_transport``   its HTTP requests; ``gateway_messages``: their form
``gateway_content``     the files of its runs, sent and fetched in parts
``outbox``              steps that wait for the server, and results that outlive the process
``device_key``          the key by which the server knows the device

The server's half:

``gateway``             what devices ask; ``gateway_runs`` takes runs for them and makes their steps
``device_storage``      what a device may store; the files that devices send and fetch
``enrolment``           one-time codes for devices, their keys and their credentials

The HTTP of the server's half is ``server/gateway_routes.py``.
"""
