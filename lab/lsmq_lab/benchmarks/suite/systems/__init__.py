"""What is measured over the network: LSMQ, on one node and on three, and its peers, each with the same promise.

``system`` says what one is. A module a system; its clients are processes of their own, and import no other's.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from .system import System

#: Each is a module of this package.
PEERS = ("redis", "kafka", "nats", "rabbitmq", "rocketmq")


@cache
def system(name: str) -> System:
    """``lsmq``, ``lsmq3`` (three nodes), or a peer."""
    module = import_module(f"{__name__}.{'lsmq' if name == 'lsmq3' else name}")
    found: System = module.THREE_NODES if name == "lsmq3" else module.SYSTEM
    return found
