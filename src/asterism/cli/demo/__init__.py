"""``asterism demo``: a release on three devices, which an editor repairs and shortens while it runs.

``demo_commands`` is the command. ``release_demo`` has the plan, its devices and its editor, as a program of one's own
would write them with the public names of the package; ``workshop`` is the real work of the tasks.
"""
