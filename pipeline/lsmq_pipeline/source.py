"""The data source ``lsmq`` as Spark sees it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lsmq_pipeline.errors import InvalidOption
from lsmq_pipeline.options import read_options, write_options
from lsmq_pipeline.schema import check_read_schema, check_write_schema, message_schema

if TYPE_CHECKING:
    from lsmq_pipeline.batch_reader import LsmqReader
    from lsmq_pipeline.stream_reader import LsmqStreamReader
    from lsmq_pipeline.writers import LsmqStreamWriter, LsmqWriter

_LOST = (
    "Spark keeps the options of a Python data source's table nowhere, and what reads or writes it later would go to "
    "another cluster. Take CREATE TEMPORARY VIEW ... USING lsmq OPTIONS (...), which keeps them"
)


class LsmqDataSource(DataSource):
    """Reads and writes topics, in batches and as streams; ``docs/pipeline.md`` has the options.

    Spark pickles it and calls it in processes of its own; nothing connects before a plan is made.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if "provider" in options:  # CREATE TABLE is what tells it.
            raise InvalidOption(f"lsmq is no table of a catalogue: {_LOST}")

    @classmethod
    def name(cls) -> str:
        return "lsmq"

    def schema(self) -> StructType:
        # Whether it is a stream is not known yet, and makes no difference to the columns.
        return message_schema(
            include_properties=self._switch("includeProperties", "true"),
            include_headers=self._switch("includeHeaders", "false"),
            binary_keys=self._switch("binaryKeys", "false"),
            include_queue_names=self._switch("includeQueueNames", "false"),
        )

    def reader(self, schema: StructType) -> LsmqReader:
        from lsmq_pipeline.batch_reader import LsmqReader

        self._check_given()
        self._check_schema(schema)
        return LsmqReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> LsmqStreamReader:
        from lsmq_pipeline.stream_reader import LsmqStreamReader

        self._check_schema(schema)
        return LsmqStreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LsmqWriter:
        from lsmq_pipeline.writers import LsmqWriter

        if overwrite:
            raise InvalidOption("a topic is appended to: write with mode append")
        self._check_given()
        options = write_options(self.options)
        check_write_schema(schema, topic=options.topic)
        return LsmqWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LsmqStreamWriter:
        from lsmq_pipeline.writers import LsmqStreamWriter

        if overwrite:
            raise InvalidOption(
                "a topic is appended to, and with output mode complete each batch would replace all before it: "
                "write with output mode append, or by foreachBatch what each batch is to add"
            )
        self._check_given()
        options = write_options(self.options)
        check_write_schema(schema, topic=options.topic)
        return LsmqStreamWriter(options)

    def _check_schema(self, schema: StructType) -> None:
        """Raises ``SchemaMismatch``, and ``InvalidOption`` for an option on columns beside a schema without them."""
        check_read_schema(schema)
        columns = ("includeProperties", "includeHeaders", "binaryKeys", "includeQueueNames")
        given = [name for name in columns if name in self.options]
        if given and schema != self.schema():
            raise InvalidOption(
                f"option {given[0]} is for reading without a schema of one's own, which itself names the columns",
                option=given[0],
            )

    def _switch(self, name: str, default: str) -> bool:
        text = str(self.options.get(name, default)).strip().lower()
        if text not in ("true", "false"):
            raise InvalidOption(f"option {name} is {text!r}; it must be true or false", option=name)
        return text == "true"

    def _check_given(self) -> None:
        """Raises ``InvalidOption`` without a single option, which is how a table of a catalogue is read and written."""
        if not self.options:
            raise InvalidOption(f"there is no option, not even url. Is it a table of a catalogue? {_LOST}")
