"""Options that whoever comes from Spark's Kafka source knows: those that mean the same here, and what to do without
the others. ``docs/pipeline-from-kafka.md`` has a row for each.
"""

from __future__ import annotations

#: Names of that source's options, in lower case, and what they are called here. Those of the same name are not listed.
READ_ALIASES = {
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "maxrecordsperpartition": "maxMessagesPerPartition",
}

_READ_REMEDIES = {
    "kafka.bootstrap.servers": "option url says where the nodes are",
    "kafka.group.id": "the checkpoint says how far a query is; option group tells others as well",
    "groupidprefix": "the checkpoint says how far a query is; option group tells others as well",
    "kafkaconsumer.polltimeoutms": "option requestTimeoutMs bounds an attempt, and deadlineMs all of them",
    "fetchoffset.numretries": "option deadlineMs says how long to go on trying",
    "fetchoffset.retryintervalms": "option deadlineMs says how long to go on trying",
}
_WRITE_REMEDIES = {
    "kafka.bootstrap.servers": "option url says where the nodes are",
    "kafka.acks": "option ack is quorum or leader",
    "kafka.compression.type": "option compression is none or zstd",
    "includeheaders": "a column headers is written where there is one",
    "kafka.partitioner.class": "rows go by their key, or to the queue that a column queue names",
}


def read_remedy(name: str) -> str | None:
    """What to do instead of an option (in lower case) that a read does not take, None where that is not known."""
    return _READ_REMEDIES.get(name) or _of_client(name)


def write_remedy(name: str) -> str | None:
    """The same of a write."""
    return _WRITE_REMEDIES.get(name) or _of_client(name)


def _of_client(name: str) -> str | None:
    return "it is a setting of Kafka's client, and LSMQ has another one" if name.startswith("kafka.") else None
