"""The coordinator: what a cluster agrees on, who leads which shard, and where clients find that out.

The agreed state is small and lives in Raft; messages never pass through here. Decisions are pure functions
(`state`, `commands`, `election`, `liveness`, `routes`), and so is Raft's algorithm (`raft_core`);
`raft_transport` is the only module that knows pysyncobj,
`zookeeper` the only one that knows kazoo. The package imports ``lsmq`` and nothing else of ours.
"""
