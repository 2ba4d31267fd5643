"""The operations on a store that is opened here: one module for each module of declarations in ``api``."""
