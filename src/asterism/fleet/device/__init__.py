"""A device of a fleet: the agent, its lease, its claimer, its worker and its executor.

========================  ==============================================================================================
``agent``                 ``DeviceAgent``: joins, works until it is drained, leaves; wires the parts below
``membership``            the session of the device in the store: join, replace, drain, leave; the lock on its name;
                          what the machine measures of itself: system, cores and load, memory, battery
``health``                the circuit breaker: a failing device takes no more work
``device_connection``     what the device asks of its fleet, as named operations; the steps of an owner (claim, start,
                          complete, fail, decline, release) as values; ``store_connection`` with the store,
                          ``gateway/gateway_connection.py`` without one, through a server
``take_order``            what the device accepts now, its own score, and its order for offered runs
``lease``                 until when the device is certain of its runs, and how often it must renew
``heartbeat``             renews the lease, reports progress, follows the store's reply, stops what outlives the lease
``claimer``               finds runs: claims assigned ones, takes offered ones, starts those created in its process
``worker``                holds runs, executes them, hands them back
``completion``            a held run, and one commit for ends that come up together
``executor``              executes a run as a command, a request, a function or work for an agent, as the policy allows
``agent_work``            work for an agent, and the port for what runs the agent
``output_watcher``        output and progress of an execution while it runs
``functions``             Python functions, in threads or on the event loop
``run_inputs``            inputs and secrets of a run, filled into its work
``process_records``       which processes a device has started; kills what a crashed device left running
========================  ==============================================================================================

``Lease`` is passed to claimer, worker and heartbeat; none of them reaches through another for it. What the
worker calls above it, in the claimer and the heartbeat, it is given; all other calls go from the agent downwards.

Two clocks, never mixed: the store judges with its own clock when it last heard of a device; the device measures its
lease with its own, from before it sent the last accepted heartbeat. A process that was frozen asks the lease again
before it begins, and a guard process ends commands whose lease runs out (execution/processes.py).

What happens to a run here is logged with ``extra={"run": id}`` on the logger ``asterism.device``.
"""
