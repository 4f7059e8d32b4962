"""State machines of a shard: consumer groups, work queues, transactions and pushed queues.

Each is a state machine whose state lies in a shard, as documents and committed offsets beside its messages; the leader
of the shard runs it, on what it has in memory. All do so in one way:

- **The decisions are pure code** (``groups/group``, ``workqueue/ledger``, ``transactions/book``, ``push/part``): built
  from what is stored; told what happens and what time it is; they answer with what is to be stored, and what follows.
- **One durable step** (:class:`Step`, :meth:`ShardMachine.put`): a change is *staged* by the pure code, *appended* in
  one piece, *committed* as durably as messages, and *stored*: only then is anybody told. A step that is refused has not
  happened. One that fails after it was appended, because its round of the store was dropped, makes the machine useless.
- **One way to be read again** (:class:`MachineService`): a machine is good for one round of its store
  (:attr:`ShardStore.round`). A round ends when what was in line may have been dropped, since the disk is full or
  leadership is over; whoever waits is told to come again, and the next machine is built from what is stored. Where
  nobody else can have led the shard in between, the next one goes on with what the one before had *left*.
- **One table of held requests** (:class:`HeldRequests`): until a machine has something to say, or a deadline.
- **One tick** (:meth:`ShardMachine.due`): what is due by now, on a clock that counts only while the node was awake and
  served the shard.
"""

from .broker_producers import with_producer
from .clock import TICK_S, AwakeClock
from .held import HeldRequests
from .idle import HOUR_S, IdleNames
from .machine import ShardMachine
from .service import MachineService
from .step import Step, StepOffsets

__all__ = [
    "HOUR_S",
    "TICK_S",
    "AwakeClock",
    "HeldRequests",
    "IdleNames",
    "MachineService",
    "StepOffsets",
    "ShardMachine",
    "Step",
    "with_producer",
]
