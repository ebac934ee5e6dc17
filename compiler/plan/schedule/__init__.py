"""Stage 4 of a plan: order, spills, recomputation, memories and addresses.

problem.py: the graph in numbers; reading.py makes it. simulation.py runs an order under a policy (policies.py): every
scheduler's model; incremental.py runs only what a candidate changes. orders.py, moves.py, annealing.py, search.py: how
orders are found. dram.py, emission.py: the schedule in the graph. slicing.py: nodes too large for a local memory,
before all that.
"""

from .scheduler import Schedule, Scheduler, schedule

__all__ = ["Schedule", "Scheduler", "schedule"]
