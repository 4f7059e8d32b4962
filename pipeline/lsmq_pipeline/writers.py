"""``df.write.format("lsmq")`` and ``df.writeStream.format("lsmq")``.

Messages are stored as tasks write them, and consumers see them at once: there is no commit over all tasks, and
``abort`` undoes nothing, since Spark calls it also after a commit that failed. A task that is tried again, and a
batch that is replayed after a restart, store nothing twice (see :mod:`lsmq_pipeline.sending`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lsmq.errors import LsmqError
from lsmq_pipeline.client import PipelineClient
from lsmq_pipeline.options import WriteOptions
from lsmq_pipeline.sending import TopicWriter, WriterName, Written

# Spark sets these for the tasks of a streaming query; the query's id outlives its restarts.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class TaskStored(WriterCommitMessage):
    """What a task stored."""

    written: Written


class LsmqWriter(DataSourceArrowWriter):
    """One batch write. It has a name of its own unless option ``queryId`` gives it one that outlives it."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.query = options.query_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write(self.options, WriterName(f"batch:{self.query}", 0, _context().partitionId()), iterator)


class LsmqStreamWriter(DataSourceStreamArrowWriter):
    """Writes of a streaming query: named by its id, which is in its checkpoint, and the number of the batch."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = _context()
        query = self.options.query_id or context.getLocalProperty(_QUERY_ID)
        batch = context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise LsmqError(
                "this version of Spark does not tell a task its query and batch; writing would not be exact"
            )
        return _write(self.options, WriterName(f"stream:{query}", int(batch), context.partitionId()), iterator)


def _write(options: WriteOptions, name: WriterName, batches: Iterator[Any]) -> TaskStored:
    with PipelineClient(options.connection) as cluster:
        writer = TopicWriter(cluster, options, name)
        for batch in batches:
            writer.write(batch)
        return TaskStored(writer.finish())


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    return context
