"""The schemas that several operations have in common, by the names that the OpenAPI document gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from lsmq_node.config import NodeConfig

from . import (
    backups,
    cluster_schemas,
    delayed_schemas,
    group_schemas,
    rights_schemas,
    schedule_schemas,
    schemas,
    transaction_schemas,
    work_schemas,
)
from .schema import Schema, bound

NAMED: Final[Mapping[str, Schema]] = MappingProxyType(
    {
        "Error": schemas.ERROR,
        "Topic": schemas.TOPIC,
        "TopicOptions": schemas.TOPIC["properties"]["options"],
        "Route": schemas.ROUTE,
        "QueueOrName": schemas.QUEUE_OR_NAME,
        "QueueBounds": schemas.BOUNDS,
        "QueueOptions": schemas.BOUNDS["properties"]["options"],
        "Trimmed": schemas.TRIMMED,
        "Health": schemas.HEALTH,
        "Header": schemas.HEADER,
        "Message": schemas.MESSAGE,
        "DelayedMessage": delayed_schemas.DELAYED_MESSAGE,
        "Schedule": schedule_schemas.SCHEDULE,
        "ScheduledMessage": schedule_schemas.SCHEDULE["properties"]["message"],
        "Group": group_schemas.GROUP,
        "GroupTopic": group_schemas.GROUP["properties"]["topics"]["items"],
        "GroupMember": group_schemas.MEMBER,
        "Reset": group_schemas.RESET_ANSWER,
        "QueueReset": group_schemas.RESET_MOVE,
        "WorkQueue": work_schemas.WORK_QUEUE,
        "WorkQueueShard": work_schemas.WORK_QUEUE["properties"]["shards"]["items"],
        "WorkQueueSettings": work_schemas.WORK_QUEUE["properties"]["shards"]["items"]["properties"]["settings"],
        "Settled": work_schemas.SETTLED,
        "RefusedReceipt": work_schemas.SETTLED["properties"]["refused"]["items"],
        "Transaction": transaction_schemas.TRANSACTION,
        "TransactionMessage": transaction_schemas.BEGIN["properties"]["messages"]["items"],
        "Decision": transaction_schemas.DECIDE,
        "Right": rights_schemas.RIGHTS["items"],
        "RoleBinding": rights_schemas.ROLES["items"],
        "Grants": rights_schemas.GRANTS,
        "NewToken": rights_schemas.NEW_TOKEN,
        "BrowserSession": rights_schemas.SESSION,
        "Backups": backups.STATE,
        "Agreed": cluster_schemas.AGREED,
    }
)


class Components:
    """Those of a document, with the numbers of a node's configuration."""

    def __init__(self, config: NodeConfig) -> None:
        self._typed = {name: typed(bound(schema, config)) for name, schema in NAMED.items()}
        self._names: dict[frozenset[str], list[str]] = {}  # by their properties
        for name, schema in self._typed.items():
            self._names.setdefault(_properties(schema), []).append(name)

    def schemas(self) -> dict[str, Any]:
        return {name: self._within(schema) for name, schema in self._typed.items()}

    def referring(self, schema: Any) -> Any:
        """The schema, with references to what has a name."""
        return self._referring(typed(schema))

    def _referring(self, schema: Any) -> Any:
        if isinstance(schema, Mapping) and ("anyOf" in schema or schema.get("type") == "object"):
            for name in self._names.get(_properties(schema), ()):
                if self._typed[name] == schema:
                    return {"$ref": f"#/components/schemas/{name}"}
        return self._within(schema)

    def _within(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._referring(each) for each in schema]
        return {name: self._referring(each) for name, each in schema.items()} if isinstance(schema, Mapping) else schema


def _properties(schema: Schema) -> frozenset[str]:
    """None of what is no object."""
    return frozenset(schema.get("properties", ()))


def typed(schema: Any) -> Any:
    """With the type of words that are enumerated, without which generators of clients take anything for them."""
    if isinstance(schema, Iterable) and not isinstance(schema, str | Mapping):
        return [typed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: typed(each) for name, each in schema.items()}
    if isinstance(words := found.get("enum"), list) and "type" not in found:
        found["type"] = ["string", "null"] if None in words else "string"
    return found
