"""LSMQ and Spark: topics as data frames and streams, and jobs over them.

``pip install "lsmq[spark]"``, then ``spark.read.format("lsmq")``. Spark finds the data source by itself where this
package is installed; :func:`register` makes sure. :func:`spark_session` makes a session with a Java it finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsmq_pipeline.errors import DataLoss, InputChanged, InvalidOption, JavaNotFound, SchemaMismatch
from lsmq_pipeline.session import register, spark_session

if TYPE_CHECKING:
    from lsmq_pipeline.source import LsmqDataSource

__all__ = [
    "DataLoss",
    "InputChanged",
    "InvalidOption",
    "JavaNotFound",
    "LsmqDataSource",
    "SchemaMismatch",
    "register",
    "spark_session",
]


def __getattr__(name: str) -> object:
    # The data source needs Spark at import; the rest says what is missing.
    if name == "LsmqDataSource":
        from lsmq_pipeline.source import LsmqDataSource

        return LsmqDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
