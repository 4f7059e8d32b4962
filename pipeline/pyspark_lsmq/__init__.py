"""Lets Spark find the data source ``lsmq`` by itself: it looks for modules called ``pyspark_*``.

Spark imports all of them whenever a data source is asked for, whichever it is. So a Python without what ours needs
must not make that fail: there is no ``lsmq`` then, and :func:`lsmq_pipeline.register` says what is missing.
"""

from contextlib import suppress

with suppress(ImportError):
    from lsmq_pipeline.source import LsmqDataSource as DefaultSource

    __all__ = ["DefaultSource"]
