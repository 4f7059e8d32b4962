"""Benchmarks of the store, of a node and of a cluster, each beside something to compare with, in the same run.

``BENCHES`` holds them by name; ``lsmq bench`` runs them, and so does ``python -m lsmq_node.benchmarks``.
"""

from lsmq_node.benchmarks import cluster, groups, node, spark, store
from lsmq_node.benchmarks.report import Bench, BenchFailed, Option, Progress, Report, Table

BENCHES: dict[str, Bench] = {
    bench.name: bench for bench in (store.BENCH, node.BENCH, cluster.BENCH, groups.BENCH, spark.BENCH)
}

__all__ = ["BENCHES", "Bench", "BenchFailed", "Option", "Progress", "Report", "Table"]
