"""Language models and agents: what they read of a plan, and what they may do to it.

``untrusted_text``  marks what devices, issues and files say, so that a model can tell it from its instructions
"""
