"""Spark's daemon for Python workers, with what the data source needs imported before it forks them.

Spark starts one on each executor (``spark.python.daemon.module``, which :func:`lsmq_pipeline.spark_session` sets) and
forks a worker for each task that finds none to use again. A worker would import Arrow, NumPy and the client by itself,
and PySpark from an archive, whose directory Python reads anew for every task: together about a second of a core.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def leave_archives_out() -> None:
    """Take PySpark and Py4J from where they are installed, if the archives that Spark puts on the path are theirs."""
    archives = [entry for entry in sys.path if entry.endswith((".zip", ".jar"))]
    others = [entry for entry in sys.path if entry not in archives]
    spark, py4j = (PathFinder.find_spec(name, others) for name in ("pyspark", "py4j"))
    if spark is None or spark.origin is None or py4j is None:
        return
    home = Path(spark.origin).resolve().parent
    for entry in archives:
        if Path(entry).resolve().is_relative_to(home):
            sys.path.remove(entry)
            sys.path_importer_cache.pop(entry, None)


if __name__ == "__main__":
    leave_archives_out()
    from pyspark.daemon import manager

    import lsmq_pipeline.batch_reader
    import lsmq_pipeline.source
    import lsmq_pipeline.stream_reader
    import lsmq_pipeline.writers  # noqa: F401

    manager()
