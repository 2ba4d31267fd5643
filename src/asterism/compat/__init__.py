"""The documented names of the Galaxy and Orion orchestrators, over the core and the runtime of Asterism.

``asterism.compat.galaxy`` and ``asterism.compat.orion`` export the same classes under their two sets of names.
"""
