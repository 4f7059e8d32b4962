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
from lsmq._batch_receipts import BatchReceipt, SentBatch
from lsmq._outages import Outage
from lsmq._receipts import Receipt, Receipts, Sent
from lsmq._shard_sender import ProducerStats
from lsmq.admin import ClusterAdmin
from lsmq.client import Client
from lsmq.consumer import Consumer
from lsmq.dead_letters import DeadLetter, DeadLetters
from lsmq.delayed import DelayedMessage, DelayedMessages
from lsmq.errors import *  # noqa: F403  # What its __all__ names, and ours below.
from lsmq.group_producer import GroupProducer
from lsmq.groups import Group, list_groups
from lsmq.messages import FoundMessages
from lsmq.node_backups import BackupAdmin, BackupEnd, BackupProgress, NodeBackupState
from lsmq.producer import Producer
from lsmq.producer_groups import TransactionInfo
from lsmq.push import PushConsumer
from lsmq.record_batch import Codec, Message
from lsmq.rights import GrantedRole, NewToken, Principal, PrincipalLimits, Right, Rights, Role, TokenInfo, WhoAmI
from lsmq.schedules import ScheduleInfo, Schedules
from lsmq.topics import NamedQueue, Offsets, QueueChanges, Route, Topic, TopicChanges, TopicUsage, TopQueue, TopQueues
from lsmq.transactions import Outcome, Transaction, TransactionalProducer
from lsmq.work_queue import Task, WorkQueue
from lsmq.work_queue_values import WorkQueueSettings, WorkQueueState

__version__ = "0.1.0"

__all__ = [
    "BackupAdmin",
    "BackupEnd",
    "BackupProgress",
    "BatchReceipt",
    "Client",
    "ClusterAdmin",
    "Codec",
    "Consumer",
    "DeadLetter",
    "DeadLetters",
    "DelayedMessage",
    "DelayedMessages",
    "FoundMessages",
    "GrantedRole",
    "Group",
    "Message",
    "NamedQueue",
    "NewToken",
    "NodeBackupState",
    "Offsets",
    "Outage",
    "Outcome",
    "GroupProducer",
    "Principal",
    "PrincipalLimits",
    "Producer",
    "ProducerStats",
    "PushConsumer",
    "Receipt",
    "Receipts",
    "Right",
    "Rights",
    "Role",
    "Route",
    "ScheduleInfo",
    "Schedules",
    "Sent",
    "SentBatch",
    "Task",
    "TokenInfo",
    "Topic",
    "QueueChanges",
    "TopicChanges",
    "TopicUsage",
    "TopQueue",
    "TopQueues",
    "Transaction",
    "TransactionInfo",
    "TransactionalProducer",
    "WhoAmI",
    "WorkQueue",
    "WorkQueueSettings",
    "WorkQueueState",
    "errors",
    "list_groups",
    "partitioners",
    "__version__",
]
__all__ += errors.__all__
