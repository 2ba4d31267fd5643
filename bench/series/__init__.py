"""How quick claims of series are, alone and when a hundred processes claim at the same moment, on every register.
``contending`` measures that, ``calls`` what a sync asks of GitHub, and ``page`` writes both down."""
