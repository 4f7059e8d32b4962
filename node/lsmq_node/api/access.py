"""What each operation needs: the one table. An operation that does not stand here is none: the node does not start.

A need is an action on resources of a kind. Their names stand in the path, the query or the body; in the body they are
only known when that is read: :meth:`.routing.Call.topic` asks for each before it looks whether there is such a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lsmq_node.rights import Action, ResourceKind


@dataclass(frozen=True, slots=True)
class Need:
    """``action`` on the resource of this kind that the request names, see :meth:`.routing.Call.name_of`; or on every
    one there may ever be, whatever its name."""

    kind: ResourceKind
    action: Action
    every: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """``open``: to everybody, whoever it is. ``lists``: the answer shows only what the caller may know of. ``changes``:
    it is done to be done, though it needs no right. ``tells``: it is open, and says more to who may describe the
    cluster."""

    needs: tuple[Need, ...] = ()
    open: bool = False
    lists: ResourceKind | None = None
    changes: bool = False
    tells: bool = False

    def action(self, kind: ResourceKind) -> Action | None:
        """What it needs of resources of the kind."""
        return next((need.action for need in self.needs if need.kind is kind), None)

    @property
    def administers(self) -> bool:
        """Whether it is administration of the cluster, or of who may what, which may have a port of its own. Whoever
        reads all there is (:data:`_WHOLE`) administers nothing."""
        return not any(need.every for need in self.needs) and any(
            need.kind is ResourceKind.RIGHTS or (need.kind is ResourceKind.CLUSTER and need.action is Action.ALTER)
            for need in self.needs
        )

    @property
    def shows(self) -> bool:
        """Whether its answer is what it is for: then whoever may not any more is not given it, though he waited."""
        return not self.changes and all(need.action in (Action.READ, Action.DESCRIBE) for need in self.needs)


def _needs(**actions: Action) -> Access:
    return Access(tuple(Need(ResourceKind(kind.replace("_", "-")), action) for kind, action in actions.items()))


#: Whoever holds a snapshot reads all that is in a shard, whosever it is, tokens' hashes and grants included.
_WHOLE: Final = Access(
    (
        Need(ResourceKind.CLUSTER, Action.DESCRIBE),
        Need(ResourceKind.RIGHTS, Action.DESCRIBE),
        Need(ResourceKind.TOPIC, Action.READ, every=True),
        Need(ResourceKind.GROUP, Action.READ, every=True),
        Need(ResourceKind.PRODUCER_GROUP, Action.DESCRIBE, every=True),
    )
)
_OPEN: Final = Access(open=True)
_HEALTH: Final = Access(open=True, tells=True)
_ANYBODY: Final = Access()  # who is known
_OWN: Final = Access(changes=True)  # likewise
_D, _R, _W = Action.DESCRIBE, Action.READ, Action.WRITE
_C, _A, _X = Action.CREATE, Action.ALTER, Action.DELETE

#: By operation.
ACCESS: Final[Mapping[str, Access]] = MappingProxyType(
    {
        # topics
        "createTopic": _needs(topic=_C),
        "growTopic": _needs(topic=_A),
        "spreadTopic": _needs(topic=_A),
        "alterTopic": _needs(topic=_A),
        "listTopics": Access(lists=ResourceKind.TOPIC),
        "getTopic": _needs(topic=_D),
        "getTopicUsage": _needs(topic=_D),
        "deleteTopic": _needs(topic=_X),
        "getQueue": _needs(topic=_D),
        "getOffsets": _needs(topic=_D),
        "listQueues": _needs(topic=_D),
        "alterQueue": _needs(topic=_A),
        "listTopQueues": _needs(topic=_D),
        "declareQueue": _needs(topic=_W),
        "deleteQueue": _needs(topic=_X),
        "trimQueue": _needs(topic=_X),
        "trimTopic": _needs(topic=_X),
        "purgeTopic": _needs(topic=_X),
        "deleteMessages": _needs(topic=_X),
        # messages
        "sendMessages": _needs(topic=_W),
        "sendBatch": _needs(topic=_W),
        "sendBatches": _needs(topic=_W),
        "takeProducer": _needs(topic=_W),
        "readMessages": _needs(topic=_R),
        "fetchBatches": _needs(topic=_R),
        "noteMoment": _needs(topic=_R),
        "readArrivals": _needs(topic=_R),
        "getMessage": _needs(topic=_R),
        "findMessages": _needs(topic=_R),
        "getLatest": _needs(topic=_R),
        "listDelayed": _needs(topic=_R),
        "getDelayed": _needs(topic=_R),
        "cancelDelayed": _needs(topic=_W),
        "rescheduleDelayed": _needs(topic=_W),
        "putSchedule": _needs(topic=_W),
        "listSchedules": _needs(topic=_R),
        "listAllSchedules": Access(lists=ResourceKind.TOPIC),
        "getSchedule": _needs(topic=_R),
        "deleteSchedule": _needs(topic=_W),
        # groups of consumers
        "listGroups": Access(lists=ResourceKind.GROUP),
        "getCoordinator": _ANYBODY,  # of groups of both kinds; it is arithmetic with the name
        "heartbeat": _needs(group=_R, topic=_R),
        "describeGroup": _needs(group=_D),
        "declareGroup": _needs(group=_R),
        "deleteGroup": _needs(group=_X),
        "commitOffsets": _needs(group=_R, topic=_R),
        "previewReset": _needs(group=_D, topic=_D),
        "resetGroup": _needs(group=_A, topic=_R),
        "getCommittedOffsets": _needs(group=_D, topic=_D),
        "deleteOffsets": _needs(group=_X),
        "fenceGroup": _needs(group=_R, topic=_R),
        "getLag": _needs(group=_D, topic=_D),
        "getLagHistory": _needs(group=_D, topic=_D),
        "push": _needs(group=_R, topic=_R),
        "acknowledgePush": _needs(group=_R),
        "listPushStreams": _needs(group=_D),
        "listTopicsOfGroup": _needs(group=_D),
        "popMessages": _needs(group=_R, topic=_R),
        "ackMessages": _needs(group=_R, topic=_R),
        "nackMessages": _needs(group=_R, topic=_R),
        "extendMessages": _needs(group=_R, topic=_R),
        "listHeld": _needs(group=_R, topic=_R),  # with receipts, by which it is settled
        "configureWorkQueue": _needs(group=_A, topic=_R),
        "describeWorkQueue": _needs(group=_D, topic=_D),
        # groups of producers
        "listProducerGroups": Access(lists=ResourceKind.PRODUCER_GROUP),
        "describeProducerGroup": _needs(producer_group=_D),
        "producerHeartbeat": _needs(producer_group=_W),
        "beginTransaction": _needs(producer_group=_W, topic=_W),
        "addToTransaction": _needs(producer_group=_W, topic=_W),
        "commitTransaction": _needs(producer_group=_W),
        "rollBackTransaction": _needs(producer_group=_W),
        "getTransaction": _needs(producer_group=_D),
        "listTransactions": _needs(producer_group=_D),
        "takeSequence": _needs(producer_group=_W),
        # the cluster
        "getCluster": _needs(cluster=_D),
        "getPlan": _needs(cluster=_D),
        "getGrowth": _needs(cluster=_D),
        "growShards": _needs(cluster=_A),
        "pauseMoves": _needs(cluster=_A),
        "resumeMoves": _needs(cluster=_A),
        "unpinShard": _needs(cluster=_A),
        "drainNode": _needs(cluster=_A),
        "undrainNode": _needs(cluster=_A),
        "removeNode": _needs(cluster=_A),
        "replaceVoter": _needs(cluster=_A),
        "keepVoter": _needs(cluster=_A),
        "moveReplicas": _needs(cluster=_A),
        "cancelMove": _needs(cluster=_A),
        "transferLeader": _needs(cluster=_A),
        "reviveShard": _needs(cluster=_A),
        # what is in shards, whole: a backup of all topics
        "beginSnapshot": _WHOLE,
        "getSnapshot": _WHOLE,
        "readSnapshotFile": _WHOLE,
        "checksumSnapshotFile": _WHOLE,
        "verifySnapshotFile": _WHOLE,
        "endSnapshot": _WHOLE,
        # the same, made by the node itself: who may read it all may have it kept where the administrator said
        "listBackups": _needs(cluster=_D),
        "startBackup": Access(_WHOLE.needs, changes=True),
        "stopBackup": Access(_WHOLE.needs, changes=True),
        "status": _needs(cluster=_D),
        "metrics": _needs(cluster=_D),
        "healthz": _HEALTH,
        "readyz": _HEALTH,
        "openapi": _OPEN,
        "getConsole": _OPEN,  # nothing of what the node holds: pages that ask for a token themselves
        "getConsoleFile": _OPEN,
        "getHistory": _needs(cluster=_D),
        "getBusiest": _needs(cluster=_D),
        # rights
        "whoami": _ANYBODY,
        "signIn": _OWN,
        "getSession": _ANYBODY,
        "renewSession": _OWN,
        "signOut": _OWN,
        "listTokens": _needs(rights=_D),
        "createToken": _needs(rights=_A),
        "rotateToken": _needs(rights=_A),
        "revokeTokens": _needs(rights=_A),
        "listRoles": _needs(rights=_D),
        "putRole": _needs(rights=_A),
        "deleteRole": _needs(rights=_A),
        "listGrants": _needs(rights=_D),
        "grantRights": _needs(rights=_A),
        "revokeRights": _needs(rights=_A),
        "testRights": _needs(rights=_D),
        "listLimits": _needs(rights=_D),
        "alterLimits": _needs(rights=_A),
        "removeLimits": _needs(rights=_A),
    }
)

#: What is administration, whatever it is done to.
ADMINISTERING: Final = frozenset({_C, _A})
#: Deletions of what may be much at once. Single messages are deleted by applications all the time.
_DELETING: Final = frozenset(
    {"deleteTopic", "purgeTopic", "trimTopic", "trimQueue", "deleteQueue", "deleteGroup", "deleteOffsets"}
)

#: Operations that the audit log notes, whatever came of them; others where they were refused, or where the caller was
#: asked for a right of administration by what the body says.
AUDITED: Final = frozenset(
    operation
    for operation, access in ACCESS.items()
    if ADMINISTERING.intersection(need.action for need in access.needs)
    or operation in _DELETING
    or operation in ("beginSnapshot", "signIn", "signOut", "startBackup", "stopBackup")
)
