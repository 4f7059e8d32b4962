"""LSMQ: a durable message queue for a million queues on a small machine.

This is the client, for asyncio; :mod:`lsmq.sync` has the same names for plain blocking code::

    async with Client("http://127.0.0.1:7600") as client:
        await client.create_topic("orders", queues=64, exist_ok=True)
        async with Producer(client, "orders") as producer:
            sent = await producer.send_and_wait("one pizza", key="table 7")
        async with Consumer(client, "orders", group="kitchen") as consumer:
            async for message in consumer:
                print(message.queue, message.offset, message.text())
                await consumer.commit()

All errors are in :mod:`lsmq.errors`, and here.
"""

from lsmq import errors, partitioners
from lsmq._lane import ProducerStats
from lsmq._outages import Outage
from lsmq._outbox import Receipt, Receipts, Sent
from lsmq.admin import ClusterAdmin
from lsmq.client import Client
from lsmq.consumer import Consumer
from lsmq.dead_letters import DeadLetter, DeadLetters
from lsmq.errors import (
    AddressInUse,
    BufferFull,
    ClientClosed,
    ConnectionFailed,
    CorruptFile,
    DataDirectoryLocked,
    DataDirectoryUnusable,
    DiskFull,
    FencedMember,
    GroupHasMembers,
    GroupModeMismatch,
    InvalidBatch,
    InvalidRequest,
    InvalidTopicName,
    LsmqError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    OriginNotAllowed,
    OutOfOrderSequence,
    ProducerFenced,
    ReceiptExpired,
    RequestTooLarge,
    SequenceReused,
    SequenceTakenOver,
    ShardStopped,
    ShuttingDown,
    SlowConsumer,
    StaleGeneration,
    StaleSequence,
    StorageError,
    StoreBusy,
    StreamReplaced,
    TimedOut,
    TooManyMembers,
    TooManyMessages,
    TooManyProducers,
    TooManyTransactions,
    TopicExists,
    TopicReplaced,
    TransactionDecided,
    TransactionTooLarge,
    Unavailable,
    UnknownGroup,
    UnknownMember,
    UnknownMessage,
    UnknownProducer,
    UnknownProducerMember,
    UnknownQueue,
    UnknownReceipt,
    UnknownStream,
    UnknownTopic,
    UnknownTransaction,
    UnsupportedFormat,
    ZooKeeperNotInstalled,
)
from lsmq.groups import Group, list_groups
from lsmq.producer import Producer
from lsmq.producer_groups import TransactionInfo
from lsmq.push import PushConsumer
from lsmq.record_batch import Codec, Message
from lsmq.topics import Offsets, Route, Topic
from lsmq.transactions import Outcome, Transaction, TransactionalProducer
from lsmq.work_queue import Task, WorkQueue
from lsmq.work_queue_values import WorkQueueSettings, WorkQueueState

__version__ = "0.1.0"

__all__ = [
    "AddressInUse",
    "BufferFull",
    "Client",
    "ClientClosed",
    "ClusterAdmin",
    "Codec",
    "ConnectionFailed",
    "Consumer",
    "CorruptFile",
    "DataDirectoryLocked",
    "DataDirectoryUnusable",
    "DeadLetter",
    "DeadLetters",
    "DiskFull",
    "Group",
    "FencedMember",
    "GroupHasMembers",
    "GroupModeMismatch",
    "InvalidBatch",
    "InvalidRequest",
    "InvalidTopicName",
    "LsmqError",
    "Message",
    "MessageTooLarge",
    "NotEnoughReplicas",
    "NotLeader",
    "OffsetOutOfRange",
    "OriginNotAllowed",
    "Offsets",
    "OutOfOrderSequence",
    "Outage",
    "ProducerFenced",
    "Outcome",
    "Producer",
    "ProducerStats",
    "PushConsumer",
    "Receipt",
    "ReceiptExpired",
    "Receipts",
    "RequestTooLarge",
    "Route",
    "Sent",
    "SequenceTakenOver",
    "ShardStopped",
    "ShuttingDown",
    "SlowConsumer",
    "StaleGeneration",
    "SequenceReused",
    "StaleSequence",
    "StorageError",
    "StoreBusy",
    "StreamReplaced",
    "Task",
    "TimedOut",
    "TooManyMembers",
    "TooManyMessages",
    "TooManyProducers",
    "TooManyTransactions",
    "Topic",
    "TopicExists",
    "TopicReplaced",
    "Transaction",
    "TransactionDecided",
    "TransactionInfo",
    "TransactionTooLarge",
    "TransactionalProducer",
    "Unavailable",
    "UnknownGroup",
    "UnknownMember",
    "UnknownMessage",
    "UnknownProducer",
    "UnknownProducerMember",
    "UnknownQueue",
    "UnknownStream",
    "UnknownReceipt",
    "UnknownTopic",
    "UnknownTransaction",
    "UnsupportedFormat",
    "WorkQueue",
    "WorkQueueSettings",
    "WorkQueueState",
    "ZooKeeperNotInstalled",
    "errors",
    "list_groups",
    "partitioners",
    "__version__",
]
