"""How quick runs are: beside the raw limits of the database, beside other queues on the same server, and in a large
fleet. Each module measures one thing and ``page`` writes it down."""
