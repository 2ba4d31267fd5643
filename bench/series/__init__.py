"""How quick claims of series are, alone and when a hundred processes claim at the same moment, on every register.
``contending`` measures and ``page`` writes it down."""
