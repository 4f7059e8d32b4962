"""The schemas of a cluster, as people see it and change it."""

from __future__ import annotations

from lsmq_coordinator.balance import MoveReason

from .schema import Schema, flag, integer, list_of, object_of, text
from .schemas import COUNT, TEXT

_VOTER_STEPS = "`filling`: the newcomer is sent the log; `joining`: and the old one is out; `leaving`: both vote."
CLUSTER: Schema = object_of(
    {
        "cluster": text("Name; null for a node of its own.", null=True),
        "version": integer(0, description="Of the agreed state."),
        "control_leader": text("Node that leads the control plane.", null=True),
        "home_shards": integer(1, description="Shards it was made with; groups are coordinated in these."),
        "moves_paused": flag("Whether no replica is added anywhere."),
        "voter_change": {
            **object_of(
                {
                    "old": text("Whose vote is taken."),
                    "new": text("Who takes it."),
                    "step": text(_VOTER_STEPS, enum=["filling", "joining", "leaving"]),
                }
            ),
            "type": ["object", "null"],
            "description": "null: nobody takes anybody's vote.",
        },
        "nodes": list_of(
            object_of(
                {
                    "id": TEXT,
                    "url": TEXT,
                    "internal_url": text(null=True),
                    "voter": flag(),
                    "state": {"enum": ["active", "draining", "removed"]},
                    "only_votes": flag("It was founded to hold nothing, as one that is `draining`."),
                    "alive": flag("null: not known here.", null=True),
                    "problems": list_of(TEXT, description="What is wrong with it, as it says itself; empty: nothing."),
                    "clock_ms": {
                        "type": ["number", "null"],
                        "description": "How far its wall clock is ahead of the cluster's middle one. null: not known.",
                    },
                    "shards_led": COUNT,
                    "replicas": COUNT,
                    "host": text("Label of the machine that it runs on.", null=True),
                    "rack": text("Label of what machines share.", null=True),
                }
            )
        ),
        "shards": list_of(
            object_of(
                {
                    "id": COUNT,
                    "leader": text(null=True),
                    "epoch": COUNT,
                    "in_sync": list_of(TEXT),
                    "replicas": list_of(TEXT),
                    "adding": list_of(TEXT, description="Replicas that are being filled."),
                    "target": list_of(TEXT, description="What a move under way ends in; empty: none."),
                    "pinned": flag("Whether people placed it: it is not moved to even nodes out."),
                    "problem": text("Why nobody leads it, and what helps.", null=True),
                    "misplaced": text("What is wrong with where its replicas are.", null=True),
                    "revived": list_of(
                        object_of(
                            {"epoch": COUNT, "node": TEXT, "incarnation": COUNT, "known_lsn": COUNT, "at_ms": COUNT}
                        ),
                        description="When an operator chose a leader although acknowledged messages may be lost, and "
                        "up to where the log was known to have been in sync; the latest last.",
                    ),
                }
            )
        ),
    }
)
PLAN: Schema = object_of(
    {
        "version": COUNT,
        "paused": flag("Whether moves wait until they are resumed."),
        "moves": list_of(
            object_of(
                {
                    "shard": COUNT,
                    "from": list_of(TEXT, description="Its replicas; the first is the preferred leader."),
                    "to": list_of(TEXT, description="What it is to have instead."),
                    "why": text(enum=[why.value for why in MoveReason]),
                    "bytes": integer(0, null=True, description="To be copied, about. null: not known."),
                }
            ),
            description="In the order in which they begin.",
        ),
        "more": flag("Whether there are more moves than these."),
        "moving": list_of(COUNT, description="Shards whose move has begun, whoever asked for it."),
        "away": list_of(
            object_of(
                {
                    "node": TEXT,
                    "away_s": {"type": "number", "minimum": 0},
                    "rebuilt_in_s": {
                        "type": ["number", "null"],
                        "description": "When its replicas are made again at others. null: not by itself.",
                    },
                }
            ),
            description="Nodes that are not heard, as long as this leader of the control plane leads.",
        ),
        "voters": list_of(
            object_of(
                {
                    "old": text("A voter that is not heard, or a node that was about to vote."),
                    "new": text("Who is to vote in its place. null: nobody is there for it.", null=True),
                    "in_s": {"type": ["number", "null"], "description": "Not sooner than that. null: not by itself."},
                    "waits_for": text("What holds it back, and what helps.", null=True),
                }
            ),
            description="Voters that other nodes are to replace, one after the other.",
        ),
    }
)
AGREED: Schema = object_of({"version": COUNT}, additionalProperties=True)
GROWTH: Schema = object_of(
    {
        "version": integer(0, description="Of the agreed state."),
        "expected_shards": integer(1, description="How many there are."),
        "shards": list_of(
            object_of(
                {"id": COUNT, "replicas": list_of(TEXT, description="Nodes; the first is the first leader.")},
            ),
            description="Those that would be new.",
        ),
    }
)
GROW_SHARDS: Schema = object_of({"shards": integer(1, 1_024, "Not fewer than there are.")})
REPLICAS: Schema = object_of({"replicas": list_of(TEXT, minItems=1, maxItems=7)})
LEADER: Schema = object_of({"node": TEXT})
SUCCESSOR: Schema = object_of({"by": text("Node that votes from then on.")})
REVIVAL: Schema = object_of(
    {"node": TEXT, "accept_loss": flag("Acknowledged messages may be lost.", enum=[True])},
    required=("node", "accept_loss"),
)
