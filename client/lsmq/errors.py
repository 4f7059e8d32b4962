"""Every error a user can meet, in one tree.

Each has a stable ``code`` (what the HTTP API and ``--json`` carry), and says whether the same request may succeed later
(``retriable``) and whether to fetch routes again first (``refresh_route``). ``details`` holds facts for programs.
"""

from __future__ import annotations

from typing import Any

from lsmq._error import LsmqError
from lsmq._extra_errors import TracingNotInstalled, UnexpectedAnswer, ZooKeeperNotInstalled
from lsmq._group_errors import GroupModeMismatch, GroupPatternMismatch
from lsmq._node_errors import SnapshotGone, TooManyFilters, TooManyRequests
from lsmq._rights_errors import (
    AntiForgeryFailed,
    AuthenticationOff,
    Forbidden,
    TooManyRights,
    Unauthenticated,
    UnknownPrincipal,
    UnknownRole,
    WrongPort,
)

__all__ = [
    "AddressInUse",
    "AlreadyDelivered",
    "AntiForgeryFailed",
    "AuthenticationOff",
    "BufferFull",
    "ClientClosed",
    "ConnectionFailed",
    "CorruptFile",
    "DataDirectoryLocked",
    "DataDirectoryUnusable",
    "DeliveriesAhead",
    "DiskFull",
    "DocumentsFull",
    "FencedMember",
    "Forbidden",
    "GroupHasMembers",
    "GroupModeMismatch",
    "GroupPatternMismatch",
    "HostNotAllowed",
    "InvalidBatch",
    "InvalidFilter",
    "InvalidQueueName",
    "InvalidRequest",
    "InvalidTopicName",
    "LogTrimmed",
    "LsmqError",
    "MessageTooLarge",
    "MethodNotAllowed",
    "NotEnoughReplicas",
    "NotLeader",
    "OffsetOutOfRange",
    "OriginNotAllowed",
    "OutOfOrderSequence",
    "ProducerFenced",
    "QuotaExceeded",
    "ReadElsewhere",
    "ReceiptExpired",
    "RequestTimeout",
    "RequestTooLarge",
    "SequenceReused",
    "SequenceTakenOver",
    "ShardStopped",
    "ShuttingDown",
    "SlowConsumer",
    "SnapshotGone",
    "StaleGeneration",
    "StaleSequence",
    "StorageError",
    "StoreBusy",
    "StreamReplaced",
    "TimedOut",
    "TooManyConnections",
    "TooManyDelayed",
    "TooManyFilters",
    "TooManyGroups",
    "TooManyItems",
    "TooManyMembers",
    "TooManyMessages",
    "TooManyProducers",
    "TooManyQueues",
    "TooManyRequests",
    "TooManyRights",
    "TooManySchedules",
    "TooManyTopics",
    "TooManyTransactions",
    "TopicExists",
    "TopicReplaced",
    "TransactionDecided",
    "TransactionTooLarge",
    "Unauthenticated",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownFetchSession",
    "UnknownGroup",
    "UnknownMember",
    "UnknownMessage",
    "UnknownPath",
    "UnknownPrincipal",
    "UnknownProducer",
    "UnknownProducerMember",
    "UnknownQueue",
    "UnknownReceipt",
    "UnknownRole",
    "UnknownSchedule",
    "UnknownStream",
    "UnknownTopic",
    "UnknownTransaction",
    "UnsupportedFormat",
    "UnsupportedMediaType",
    "TracingNotInstalled",
    "WrongPort",
    "ZooKeeperNotInstalled",
]


class InvalidRequest(LsmqError):
    """The request itself is wrong; sending it again cannot help."""

    code = "invalid_request"


class UnknownPath(InvalidRequest):
    """The API has nothing at this path."""

    code = "unknown_path"


class MethodNotAllowed(InvalidRequest):
    """The path is one of the API's, and takes other methods; the header ``Allow`` names them."""

    code = "method_not_allowed"


class InvalidQueueName(InvalidRequest):
    """Not 1 to 255 bytes of UTF-8 without control characters."""

    code = "invalid_queue_name"


class InvalidTopicName(InvalidRequest):
    code = "invalid_topic_name"


class InvalidFilter(InvalidRequest):
    """A condition that is not well formed."""

    code = "invalid_filter"


class InvalidBatch(InvalidRequest):
    """A record batch that cannot be decoded, or whose checksum does not match its bytes."""

    code = "invalid_batch"


class MessageTooLarge(InvalidRequest):
    code = "message_too_large"


class RequestTooLarge(InvalidRequest):
    code = "request_too_large"


class RequestTimeout(LsmqError):
    """The request's body did not arrive in time; nothing was done."""

    code = "request_timeout"
    retriable = True


class UnsupportedMediaType(InvalidRequest):
    """The request's body is of a type, or in a coding, that the operation does not take."""

    code = "unsupported_media_type"


class TooManyItems(InvalidRequest):
    """The body holds more values than one request may; send them in parts, or packed."""

    code = "too_many_items"


class TooManyMessages(InvalidRequest):
    code = "too_many_messages"


class UnknownTopic(LsmqError):
    code = "unknown_topic"


class UnknownQueue(LsmqError):
    code = "unknown_queue"


class UnknownMessage(LsmqError):
    """No message has this id: it never existed, was acknowledged and deleted, or fell to retention."""

    code = "unknown_message"


class TopicExists(LsmqError):
    """The topic exists with other options."""

    code = "topic_exists"


class TopicReplaced(LsmqError):
    """The topic was deleted and made anew under its name: offsets and ids known of it mean nothing any more.

    ``details`` carries ``topic``, ``expected_id`` and, where known, ``id``, the new topic's.
    """

    code = "topic_replaced"


class OffsetOutOfRange(LsmqError):
    """``details`` carries ``earliest`` (first offset kept) and ``latest`` (the next to be written)."""

    code = "offset_out_of_range"


class OutOfOrderSequence(LsmqError):
    """A producer skipped a sequence number: an earlier batch of it never arrived here."""

    code = "out_of_order_sequence"


class StaleSequence(LsmqError):
    """A batch stored so long ago that its offsets are no longer remembered. It *is* stored."""

    code = "stale_sequence"


class SequenceReused(LsmqError):
    """A batch that differs from the one that the producer sent under this sequence. It is *not* stored."""

    code = "sequence_reused"


class ProducerFenced(LsmqError):
    """The producer has begun a newer epoch. ``details`` carries ``epoch`` and ``latest``."""

    code = "producer_fenced"


class TooManyProducers(LsmqError):
    """The shard remembers as many idempotent producers as it may."""

    code = "too_many_producers"


class UnknownProducer(LsmqError):
    """The producer's state expired; whether the batch was stored before cannot be told."""

    code = "unknown_producer"


class UnknownGroup(LsmqError):
    code = "unknown_group"


class UnknownFetchSession(LsmqError):
    """The node does not know this fetch session, or not any more: name the queues and offsets again."""

    code = "unknown_fetch_session"


class UnknownMember(LsmqError):
    """The group does not know this member, or not any more: its session ended. Drop all queues and join again."""

    code = "unknown_member"


class StaleGeneration(LsmqError):
    """Somebody newer has the queues, or the static id. ``details`` may carry ``fence``, the least that may commit.

    A member heartbeats at once, and goes on if it still owns its queues.
    """

    code = "stale_generation"


class FencedMember(LsmqError):
    """A member commits for a queue that the group has not given to it, or in a generation that it was not told of.

    ``details`` carries ``generation``, the group's, and ``queue``. Heartbeat, and commit what is the member's own.
    """

    code = "fenced_member"


class GroupHasMembers(LsmqError):
    """Members live: stop them first, or say that it is meant."""

    code = "group_has_members"


class TooManyMembers(LsmqError):
    """The group has as many members as one may have."""

    code = "too_many_members"


class ReceiptExpired(LsmqError):
    """The delivery is over: its visibility ended, or it was given back. The message may be another's by now."""

    code = "receipt_expired"


class UnknownReceipt(LsmqError):
    """This is no receipt of this group and topic."""

    code = "unknown_receipt"


class UnknownProducerMember(LsmqError):
    """The producer group does not know this member, or not any more: its session ended. Join anew, under a new id."""

    code = "unknown_producer_member"


class UnknownTransaction(LsmqError):
    """There is no such transaction: it was never begun, or was decided so long ago that it is forgotten."""

    code = "unknown_transaction"


class TransactionDecided(LsmqError):
    """Somebody has decided it the other way. ``details``: ``state``, and ``decided_by``: member, operator or broker."""

    code = "transaction_decided"


class TransactionTooLarge(InvalidRequest):
    """A transaction holds so many bytes, messages or parts, and no more."""

    code = "transaction_too_large"


class TooManyTransactions(LsmqError):
    """The producer group has as many unfinished transactions as one may have."""

    code = "too_many_transactions"
    retriable = True


class TooManyGroups(LsmqError):
    """There are as many groups as may be, of all or of the caller's; delete some that nobody uses."""

    code = "too_many_groups"


class TooManyQueues(LsmqError):
    """There are as many queues as there may be, in all, of one who asks, or with names in a shard: delete some, or have
    empty ones forgotten."""

    code = "too_many_queues"


class TooManyTopics(LsmqError):
    """There are as many topics as may be, of all or of the caller's; delete some, or use more queues a topic."""

    code = "too_many_topics"


class SequenceTakenOver(LsmqError):
    """Another member goes on with the sequence. ``details`` carries ``epoch``, the one that counts now."""

    code = "sequence_taken_over"


class TooManyDelayed(LsmqError):
    """So many delayed messages are pending in the shard that it takes no more; see ``max_delayed``."""

    code = "too_many_delayed"
    retriable = True


class UnknownSchedule(LsmqError):
    """The topic has no schedule of this name."""

    code = "unknown_schedule"


class TooManySchedules(LsmqError):
    """So many schedules are in the shard that it takes no more, or none of yours (`principal_schedules`)."""

    code = "too_many_schedules"


class AlreadyDelivered(LsmqError):
    """The delayed message is in its queue by now: it cannot be cancelled or rescheduled any more."""

    code = "already_delivered"


class DeliveriesAhead(LsmqError):
    """A shard has had later deliveries of a coordinator than that one knows of. ``details`` carries ``last``."""

    code = "deliveries_ahead"


class NotLeader(LsmqError):
    code = "not_leader"
    retriable = True
    refresh_route = True


class ReadElsewhere(LsmqError):
    """These are to be read at another node. ``details``: ``url`` of a follower in sync, ``shard``, ``epoch``."""

    code = "read_elsewhere"


class Unavailable(LsmqError):
    """The node cannot serve this now, and may soon."""

    code = "unavailable"
    retriable = True


class NotEnoughReplicas(Unavailable):
    """The shard's in-sync set is below ``min_in_sync``. With ``details["sent"]`` a write may be stored all the same."""

    code = "not_enough_replicas"


class StoreBusy(Unavailable):
    """Flushing and merging have fallen behind; writes are refused until they catch up."""

    code = "store_busy"


class DiskFull(Unavailable):
    """Writes are refused for want of disk space; reads go on."""

    code = "disk_full"


class QuotaExceeded(Unavailable):
    """The topic, or a queue of it, holds as much as it may; nothing is stored until there is room.

    ``details`` carries ``topic``, ``option`` (the limit's name), ``limit``, ``held``, and ``queue`` where it is one's.
    """

    code = "quota_exceeded"


class DocumentsFull(Unavailable):
    """A shard keeps no more documents: the state of groups, transactions and retries."""

    code = "documents_full"


class ShuttingDown(Unavailable):
    code = "shutting_down"


class TimedOut(LsmqError):
    """The answer did not come in time. A write may have been stored all the same."""

    code = "timed_out"
    retriable = True


class ConnectionFailed(LsmqError):
    """No node could be reached."""

    code = "connection_failed"
    retriable = True


class BufferFull(LsmqError):
    """The producer's memory limit is reached and the caller asked not to wait."""

    code = "buffer_full"
    retriable = True


class ClientClosed(LsmqError):
    """The client, producer, consumer or store was used after it was closed."""

    code = "closed"


class StorageError(LsmqError):
    """The disk or a file on it cannot be trusted or used."""

    code = "storage_error"


class CorruptFile(StorageError):
    """A checksum does not match. ``details`` names ``file`` and ``position`` (bytes)."""

    code = "corrupt_file"


class ShardStopped(StorageError):
    """A write or fsync failed, or the shard's disk is missing; it takes no writes until the node is restarted."""

    code = "shard_stopped"


class DataDirectoryLocked(StorageError):
    """Another process holds the data directory; ``details`` names its ``pid`` where known."""

    code = "data_directory_locked"


class DataDirectoryUnusable(StorageError):
    """The data directory cannot be created, read or written."""

    code = "data_directory_unusable"


class UnsupportedFormat(StorageError):
    """A file was written by a newer version; upgrade, or start with an empty data directory."""

    code = "unsupported_format"


class LogTrimmed(StorageError):
    """A shard's log no longer reaches back to an LSN: what was there is in the tables alone."""

    code = "log_trimmed"


class AddressInUse(LsmqError):
    code = "address_in_use"


class UnknownStream(LsmqError):
    """No such stream is held by this node."""

    code = "unknown_stream"


class StreamReplaced(LsmqError):
    """Another stream came with the same subscriber's name, and has its place."""

    code = "stream_replaced"


class SlowConsumer(LsmqError):
    """A stream whose consumer read or acknowledged nothing for too long; what was not acknowledged comes again."""

    code = "slow_consumer"
    retriable = True


class OriginNotAllowed(LsmqError):
    """A page of that origin may not use this node from a browser."""

    code = "origin_not_allowed"


class HostNotAllowed(LsmqError):
    """The request came by a host name that the node does not know for its own."""

    code = "host_not_allowed"


class TooManyConnections(LsmqError):
    """The node, or the caller's address, has as many connections as it may; nothing was read."""

    code = "too_many_connections"
    retriable = True


def _all_subclasses(root: type[LsmqError]) -> list[type[LsmqError]]:
    return [root] + [leaf for child in root.__subclasses__() for leaf in _all_subclasses(child)]


_BY_CODE: dict[str, type[LsmqError]] = {kind.code: kind for kind in reversed(_all_subclasses(LsmqError))}


def from_dict(body: dict[str, Any]) -> LsmqError:
    """Rebuild the error an answer carries. An unknown code becomes a plain :class:`LsmqError`."""
    fields = dict(body)
    code = str(fields.pop("code", "internal"))
    message = str(fields.pop("message", code))
    retriable = bool(fields.pop("retriable", False))
    fields.pop("refresh_route", None)
    if (kind := _BY_CODE.get(code)) is None:
        unknown = LsmqError(message, remote_code=code, **fields)
        unknown.retriable = retriable
        return unknown
    return kind(message, **fields)
