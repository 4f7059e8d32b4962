"""Push: messages go out over held streams, as many as the consumer has given credit for.

The leader of a shard is the only one that sends its queues' messages and commits for them, so a group's queues are
shared out for each shard by its leader alone, in memory, and its epoch is the fence. :mod:`.ledger`, :mod:`.sharing`
:mod:`.part` and :mod:`.merge` are pure; :mod:`.feed` is what the streams of a group share, :mod:`.stream` one held
connection, :mod:`.relay` one that passes on what other nodes lead, and :class:`PushService` what the API asks.
"""

from .held import HeldStream, Sink
from .options import Acknowledge, PushStart, StreamOptions
from .service import PushService
from .stream import PushStream

__all__ = ["Acknowledge", "HeldStream", "PushService", "Sink", "PushStart", "PushStream", "StreamOptions"]
