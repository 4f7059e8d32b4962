"""A seeded simulator of a shard's replicas: the daemon's protocol code in virtual time under faults.

    python -m lsmq_lab.simulation --seeds 0-499

One ``random.Random(seed)`` decides everything, so a seed replays exactly. ``world`` holds time and the schedule,
``disk`` what a crash leaves, ``network`` what messages suffer, ``control`` the control plane, ``replica`` a node,
``clients`` the load, ``faults`` what goes wrong, ``invariants`` what must hold at every step.
"""

from .invariants import InvariantViolated
from .runs import Outcome, Simulation, simulate
from .world import Options

__all__ = ["InvariantViolated", "Options", "Outcome", "Simulation", "simulate"]
