"""The columns of a message in Spark, and what Arrow calls them."""

from __future__ import annotations

from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lsmq_pipeline.errors import SchemaMismatch

COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "queue": IntegerType(),
    "offset": LongType(),
    "key": StringType(),
    "tag": StringType(),
    "priority": IntegerType(),
    "properties": MapType(StringType(), StringType()),
    "stored_time": TimestampType(),
    "id": StringType(),
    "body": BinaryType(),
}
#: Columns that a read makes when it is told to, by an option or by a schema, and types that a column may have instead.
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_READABLE: dict[str, tuple[DataType, ...]] = {
    **{name: (kind,) for name, kind in COLUMNS.items()},
    "key": (StringType(), BinaryType()),
    "headers": (HEADERS,),
    "key_is_text": (BooleanType(),),
    "subpriority": (IntegerType(),),
    "type": (StringType(),),
    "expires_time": (TimestampType(),),
    "queue_name": (StringType(),),
}


def message_schema(
    *,
    include_properties: bool = True,
    include_headers: bool = False,
    binary_keys: bool = False,
    include_queue_names: bool = False,
) -> StructType:
    """All columns of a read."""
    kinds = {name: kind for name, kind in COLUMNS.items() if include_properties or name != "properties"}
    if binary_keys:
        kinds["key"] = BinaryType()
    if include_headers:
        kinds["headers"] = HEADERS
    if include_queue_names:
        kinds["queue_name"] = StringType()
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def whole_schema() -> StructType:
    """All that a message holds, none of it changed: what a copy needs."""
    whole = message_schema(include_headers=True, binary_keys=True)
    whole = whole.add("key_is_text", BooleanType()).add("type", StringType()).add("subpriority", IntegerType())
    return whole.add("expires_time", TimestampType())


def check_read_schema(schema: StructType) -> None:
    """A user may ask for some of the columns by a schema of his own. Raises :class:`SchemaMismatch`."""
    _check_once(schema)
    for field in schema.fields:
        kinds = _READABLE.get(field.name)
        if kinds is None:
            raise SchemaMismatch(
                f"a message has no column {field.name!r}; it has: {', '.join(_READABLE)}", column=field.name
            )
        if field.dataType not in kinds:
            names = " or ".join(kind.simpleString() for kind in kinds)
            raise SchemaMismatch(
                f"column {field.name!r} is read as {names}, not {field.dataType.simpleString()}; cast it after reading",
                column=field.name,
            )


def arrow_schema(schema: StructType) -> Any:
    """The Arrow schema that Spark expects for this one, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


#: For each column that a write takes, the types it may have.
WRITABLE: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "key": ("string", "binary"),
    "tag": ("string",),
    "topic": ("string",),
    "queue": ("int", "bigint", "smallint", "tinyint"),
    "queue_name": ("string",),
    "priority": ("int", "bigint", "smallint", "tinyint"),
    "subpriority": ("int", "bigint", "smallint", "tinyint"),
    "properties": ("map<string,string>",),
    "headers": (HEADERS.simpleString(),),
    "key_is_text": ("boolean",),
    "type": ("string",),
    "ttl_ms": ("bigint", "int"),
    "expires_at_ms": ("bigint",),
    "delay_ms": ("bigint", "int"),
    "deliver_at_ms": ("bigint",),
    "dedupe_id": ("string",),
}
_PASSED_OVER = frozenset({"offset", "id", "stored_time", "expires_time"})


def check_write_schema(schema: StructType, *, topic: str | None) -> None:
    """Whether rows of this schema can be written. Raises :class:`SchemaMismatch` naming the column."""
    _check_once(schema)
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name in _PASSED_OVER:
            continue
        kinds = WRITABLE.get(field.name)
        if kinds is None:
            raise SchemaMismatch(
                f"a message has no column {field.name!r}; drop it, or rename it to one of: {', '.join(WRITABLE)}",
                column=field.name,
            )
        found = field.dataType.simpleString()
        if found not in kinds:
            raise SchemaMismatch(
                f"column {field.name!r} is {found}; a message takes {' or '.join(kinds)}", column=field.name
            )
    if "body" not in names:
        raise SchemaMismatch(
            f"there is no column 'body', which is what a message holds; there are: {', '.join(names)}", column="body"
        )
    if topic is None and "topic" not in names:
        raise SchemaMismatch("say where to write: option topic, or a column 'topic'", column="topic")


def _check_once(schema: StructType) -> None:
    """Raises :class:`SchemaMismatch` for a name that two columns have, as after a join: one would count for nothing."""
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise SchemaMismatch(f"column {name!r} is there twice; drop one, or rename it", column=name)
