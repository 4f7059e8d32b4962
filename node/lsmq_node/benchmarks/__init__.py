"""Benchmarks of the store and of a node, each beside a peer measured in the same run.

``BENCHES`` holds them by name; ``lsmq bench`` runs them, and so does ``python -m lsmq_node.benchmarks``.
"""

from lsmq_node.benchmarks import node, store
from lsmq_node.benchmarks.report import Bench, BenchFailed, Option, Progress, Report, Table

BENCHES: dict[str, Bench] = {bench.name: bench for bench in (store.BENCH, node.BENCH)}

__all__ = ["BENCHES", "Bench", "BenchFailed", "Option", "Progress", "Report", "Table"]
