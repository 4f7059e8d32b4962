"""The client for plain blocking code: the names of :mod:`lsmq`, without ``async`` and ``await``.

::

    with Client() as client:
        with Producer(client, "orders") as producer:
            producer.send("one pizza", key="table 7")
        with Consumer(client, "orders", start="earliest") as consumer:
            for message in consumer:
                print(message.text())

Each client runs an event loop in a daemon thread of its own, in which the asyncio classes do all the work;
nothing here but the crossing. Objects may be used from any thread, a consumer from one at a time. A crossing
costs some 50 us, so send many messages with :meth:`Producer.send_many`; reading crosses once for many
messages already.
"""

from lsmq._receipts import Sent
from lsmq.sync._admin import ClusterAdmin
from lsmq.sync._client import Client
from lsmq.sync._consumer import Consumer
from lsmq.sync._dead_letters import DeadLetters
from lsmq.sync._delayed import DelayedMessages
from lsmq.sync._group_producer import GroupProducer
from lsmq.sync._groups import Group, list_groups
from lsmq.sync._node_backups import BackupAdmin
from lsmq.sync._producer import BatchReceipt, Producer, Receipt, Receipts
from lsmq.sync._push import PushConsumer
from lsmq.sync._rights import Rights
from lsmq.sync._schedules import Schedules
from lsmq.sync._transactions import Transaction, TransactionalProducer
from lsmq.sync._work_queue import Task, WorkQueue

__all__ = [
    "BackupAdmin",
    "BatchReceipt",
    "Client",
    "ClusterAdmin",
    "Consumer",
    "DeadLetters",
    "DelayedMessages",
    "Group",
    "GroupProducer",
    "Producer",
    "PushConsumer",
    "Receipt",
    "Receipts",
    "Rights",
    "Schedules",
    "Sent",
    "Task",
    "Transaction",
    "TransactionalProducer",
    "WorkQueue",
    "list_groups",
]
