"""How quick constellations are that outlive every process: beside the bare database and beside other engines with
durable steps; how long it takes to take one up again, and what its journal weighs. Each module measures one thing and
``page`` writes it down."""
