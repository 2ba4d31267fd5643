"""The device policy: what a device executes, whatever the store asks it to.

``device_policy`` has ``DevicePolicy``, which judges commands, functions, addresses, directories, variables and secrets.
Each method raises ``PolicyForbids`` for what is not allowed. ``rule_patterns`` has its patterns of names and hosts.
``policy_file`` reads it from YAML and names every mistake with its line. ``judged_requests`` sends HTTP requests that
the device policy allows, for runs and for notices.

Invariants: an entry that is missing allows nothing; what was judged is exactly what is executed; no pattern takes long
to match, whatever name it is compared with; the parser that judges a URL is the one that connects.

To add a rule: a field of ``device_policy.Rules`` and of the model in ``policy_file``, a method of ``DevicePolicy`` that
judges it, its call in ``device/executor.py`` right before the execution, and a row in docs/reference/policy-file.md.
"""
