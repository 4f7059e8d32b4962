"""The configuration of one node: a frozen dataclass, read from TOML, environment and arguments.

Later sources win: defaults, then the TOML file, then ``LSMQ_<FIELD>`` in the environment, then keyword
overrides (the command line). A key that no field has is refused wherever it comes from, since a misspelt limit is found
out at the worst moment. For a node's ``[cluster]``, or ``LSMQ_CLUSTER_<FIELD>``, see ``cluster_config.py``.
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsmq_node.backup_config import BackupConfig
from lsmq_node.choices import MAX_SHARDS_OF_ONE, Auth, CertificateName, Compression, Forward, LogFormat
from lsmq_node.client_port_config import check_naming, is_loopback
from lsmq_node.cluster_config import ENVIRONMENT_PREFIX as CLUSTER_PREFIX
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.data_config import data_directories
from lsmq_node.settings import (
    KIB,
    MIB,
    InvalidConfig,
    check_ranges,
    convert,
    known_fields,
    plain,
    setting,
    unknown_setting,
)
from lsmq_node.storage import FlushMode
from lsmq_node.tls_settings import check_tls, peer_files

__all__ = ["Auth", "CertificateName", "Compression", "Forward", "InvalidConfig", "LogFormat", "NodeConfig"]

ENVIRONMENT_PREFIX = "LSMQ_"
#: Variables with our prefix that are not the node's: where clients connect to, and which file to read.
FOREIGN_VARIABLES = frozenset(
    {
        "LSMQ_URL",
        "LSMQ_PROFILE",
        "LSMQ_CONFIG",
        "LSMQ_ZOOKEEPER",
        "LSMQ_CLUSTER",
        "LSMQ_TOKEN",
        "LSMQ_TOKEN_FILE",
        "LSMQ_CA",
        "LSMQ_CERT",
        "LSMQ_CERT_KEY",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(BackupConfig):
    """Everything a node can be told, after what :class:`BackupConfig` has. Field names end in their unit.
    :meth:`validate` checks ranges and what must hold between fields; :meth:`load` calls it."""

    processes: int = setting(
        1,
        "Processes of this machine that hold shards ([all cores](operations.md#all-cores)), each at the node's ports "
        "plus 10, 20, ... 0, and on the command line `auto`: one a core.",
        range=(0, 64),
        hazard="Memory: each is a node with limits of its own.",
    )
    shards: int = setting(
        1,
        "Shards that a node that is in no cluster is made with. Fixed once the data directory exists; `lsmq shard "
        "grow` adds to them.",
        range=(1, MAX_SHARDS_OF_ONE),
        hazard="Each costs `memtable_bytes` and `cache_bytes`.",
    )

    flush_mode: FlushMode = setting(
        FlushMode.SYNC,
        "`sync`: acknowledge after fdatasync. `async`: after write(2). A [topic or a request](replication.md#what-an-"
        "acknowledgement-means) may say otherwise.",
        hazard="With `async` a power cut loses what was acknowledged last.",
    )
    flush_interval_ms: int = setting(
        100,
        "With `async`, be it of the node, a topic or a request, the longest time between two fdatasyncs.",
        range=(1, 60_000),
        hazard="So much may be lost to a power cut.",
    )
    flush_bytes: int = setting(
        8 * MIB,
        "With `async`, the most bytes written but not yet synced, per shard.",
        range=(4 * KIB, 1024 * MIB),
        hazard="So much may be lost to a power cut.",
    )
    memtable_bytes: int = setting(
        64 * MIB,
        "Size at which a memtable is frozen and flushed, per shard.",
        range=(64 * KIB, 4096 * MIB),
        hazard="Memory; too small, and flushing and merging keep the disk busy.",
    )
    memtable_age_ms: int = setting(
        600_000,
        "A memtable that has held something for so long is flushed, however little it is.",
        range=(1_000, 30 * 24 * 3_600_000),
        hazard="Too long: where little is written, what was deleted or has expired takes space until then. Too short: "
        "many small tables to merge.",
    )
    max_documents_bytes: int = setting(
        256 * MIB,
        "Most bytes of documents (groups, transactions, retries), per shard; more are refused with `documents_full`.",
        range=(64 * KIB, 64 * 1024 * MIB),
        hazard="Memory; too small refuses new groups and retries.",
    )
    max_delayed: int = setting(
        100_000_000,
        "Most delayed messages that are pending, per shard; more are refused with `too_many_delayed`. They take disk, "
        "and no memory.",
        range=(0, 10**12),
        hazard="Too small refuses messages that are to come later; too large lets them fill the disk.",
    )
    producer_expiry_ms: int = setting(
        7 * 24 * 3_600_000,
        "An idempotent producer that sent a shard nothing for so long is forgotten there: its next batch is refused "
        "with `unknown_producer`.",
        range=(60_000, 10 * 365 * 24 * 3_600_000),
        hazard="The first request of a producer, repeated later than this, is stored twice.",
    )
    max_producers: int = setting(
        10_000_000,
        "Most idempotent producers that are remembered, per shard; new ones are refused beyond with "
        "`too_many_producers`.",
        range=(1, 1_000_000_000),
        hazard="Each takes two bytes of memory, and about a hundred on the disk.",
    )
    cache_bytes: int = setting(
        64 * MIB, "Cache of table blocks and index pages, per shard.", range=(0, 1024 * 1024 * MIB), hazard="Memory."
    )
    max_open_tables: int = setting(
        1024,
        "Table files held open for reading, per shard; fewer where `ulimit -n` is low.",
        range=(1, 1_000_000),
        hazard="Too few: files are opened again and again; each counts against `ulimit -n`.",
    )
    segment_bytes: int = setting(
        64 * MIB,
        "Size of a log segment file. Fixed once the data directory exists; in a cluster at founding, for all nodes.",
        range=(64 * KIB, 1024 * MIB),
        hazard="Space is taken as the log grows; two files of a log that was flushed are kept to be used again.",
    )
    max_waiting_bytes: int = setting(
        64 * MIB,
        "Most bytes of the log that wait in memory to be written and committed, per shard; more are refused.",
        range=(64 * KIB, 4096 * MIB),
        hazard="Memory; too small refuses bursts that the disk would keep up with.",
    )
    wal_keep_bytes: int = setting(
        512 * MIB,
        "Of the log that other replicas have not got yet, so much is kept after it is flushed, per shard.",
        range=(64 * KIB, 1024 * 1024 * MIB),
        hazard="Disk space; a replica that is further behind is sent whole tables instead.",
    )
    min_free_bytes: int = setting(
        64 * MIB,
        "Writes are refused below this much free disk space.",
        range=(0, 1024 * 1024 * MIB),
        hazard="Too little leaves no room for flushing and merging to free space.",
    )
    compression: Compression = setting(
        Compression.NONE, "Of table blocks: `none` or `zstd`.", hazard="`zstd` costs time at each flush and merge."
    )
    retention_interval_ms: int = setting(
        10_000,
        "How often messages beyond a topic's retention are dropped.",
        range=(1, 86_400_000),
        hazard="What has expired is readable for so long at most; `retention_bytes` never leaves less than the limit.",
    )

    max_message_bytes: int = setting(
        1 * MIB,
        "Largest message: key, tag, properties and body together.",
        range=(1, 64 * MIB),
        hazard="Large ones hold up small ones behind them.",
    )
    max_request_bytes: int = setting(
        8 * MIB,
        "Largest request body, also after decompression.",
        range=(1 * KIB, 256 * MIB),
        hazard="Memory per request in flight.",
    )
    max_response_bytes: int = setting(
        8 * MIB, "Most bytes of messages in one answer.", range=(1 * KIB, 256 * MIB), hazard="Memory per answer."
    )
    max_messages_per_request: int = setting(
        10_000, "Most messages in one request or answer.", range=(1, 1_000_000), hazard="Time and memory per request."
    )
    max_topics: int = setting(
        10_000,
        "Most topics there may be; more are refused with `too_many_topics`. Queues are for the many.",
        range=(1, 1_000_000),
        hazard="Each costs some kilobytes on every node, and in a cluster a part of the control plane's state.",
    )
    max_groups: int = setting(
        10_000,
        "Most consumer groups of a shard (coordinated there, or with offsets there), and most producer groups; more "
        "are refused with `too_many_groups`.",
        range=(1, 1_000_000),
        hazard="Each takes memory, and a part of `max_documents_bytes`.",
    )
    group_retention_hours: int = setting(
        720,
        "A consumer group that has no members, and commits nothing for so long, is forgotten with its offsets; one "
        "whose topics are all deleted after an hour or two. Counted while its shard is served. 0: never, neither.",
        range=(0, 1_000_000),
        hazard="A consumer that comes back later begins anew.",
    )
    sequence_retention_hours: int = setting(
        8_760,
        "A sequence of a producer group that nobody takes, and no transaction commits anything of, for so long is "
        "forgotten with its position, unless the member that took it is heard of. Counted while its shard is served. "
        "0: never.",
        range=(0, 1_000_000),
        hazard="Whoever takes it later hears of no position, and begins anew.",
    )
    max_queues_per_topic: int = setting(
        16_000_000, "Most queues a topic may have.", range=(1, 16_000_000), hazard="Each costs 24 bytes once used."
    )
    max_queues: int = setting(
        100_000_000,
        "Most queues of all topics, but for named ones.",
        range=(1, 1 << 40),
        hazard="As of the one before.",
    )
    max_named_queues: int = setting(
        16_000_000, "Most named queues of a shard.", range=(1, 1 << 40), hazard="Each takes 85 bytes at each replica."
    )
    max_queues_per_request: int = setting(
        1_000_000, "Most queues one request may name.", range=(1, 16_000_000), hazard="Time and memory per request."
    )
    max_fetch_session_bytes: int = setting(
        64 * MIB,
        "Most memory for fetch sessions: where readers of many queues are, 13 bytes a queue. Who uses his least goes.",
        range=(0, 64 * 1024 * MIB),
        hazard="Memory; too small, and readers name all their queues in each request.",
    )
    max_waiters: int = setting(
        20_000, "Most long polls held at one time.", range=(0, 1_000_000), hazard="Each holds a connection."
    )
    max_wait_ms: int = setting(
        60_000,
        "Longest time a long poll is held.",
        range=(0, 3_600_000),
        hazard="Proxies in between may cut connections that are idle for so long.",
    )
    max_push_streams: int = setting(
        20_000, "Most streams held at one time.", range=(0, 1_000_000), hazard="Each holds a connection, and memory."
    )
    max_push_bytes: int = setting(
        64 * MIB,
        "Memory for messages on their way to held streams, of all of them together.",
        range=(1 * MIB, 1024 * 1024 * MIB),
        hazard="Streams wait for it; too little, and slow connections hold up others.",
    )
    max_connections: int = setting(
        20_000,
        "Most connections of clients; fewer where the system lets the process have too few files (`ulimit -n`).",
        range=(1, 1_000_000),
        hazard="Memory: some 10 KB each.",
    )
    address_share_percent: int | None = setting(
        None,
        "Of all that clients may have together, one address (of IPv6, one /64) may have so much: of `max_connections`, "
        "`max_inflight_bytes`, `max_fetch_session_bytes`, `max_waiters`, `max_push_streams`, `max_forwarded`, "
        "`max_topics`, `max_queues`, `max_named_queues`, `max_groups`, `max_producers`, and of a shard's schedules and "
        "open transactions. Left out: 50; and where the node listens on this machine alone, 100 of all but the first "
        "three.",
        range=(1, 100),
        hazard="Small, and clients behind one proxy or on one machine are refused; 100 lets one take all.",
    )
    address_requests_per_s: int = setting(
        0,
        "Most requests a second of one address (of IPv6, one /64): more are delayed by up to a second, then refused by "
        "`too_many_requests` (429), which says when to come again. 0: no limit.",
        range=(0, 10_000_000),
        hazard="Clients behind one proxy are one address.",
    )
    address_bytes_per_s: int = setting(
        0,
        "The same of bytes of requests and answers, paid for by the requests after them; held streams are left out.",
        range=(0, 1024 * 1024 * MIB),
        hazard="Clients behind one proxy are one address.",
    )
    principal_requests_per_s: int = setting(
        0,
        "With `auth`: most requests a second of one principal at this node, as `address_requests_per_s`. 0: no limit. "
        "`lsmq limit set` sets one's own ([limits](security.md#limits)); so it is with all `principal_` settings.",
        range=(0, 10_000_000),
        hazard="Too few, and what many processes do under one name is refused.",
    )
    principal_bytes_per_s: int = setting(
        0,
        "The same of bytes of requests and answers, as `address_bytes_per_s`.",
        range=(0, 1024 * 1024 * MIB),
        hazard="A large batch is paid for by the requests after it.",
    )
    principal_open_requests: int = setting(
        0,
        "Most requests of one principal that a node has not answered yet, long polls and streams among them; more are "
        "refused with `too_many_requests`.",
        range=(0, 1_000_000),
        hazard="A consumer holds one for each leader, and one for its group.",
    )
    principal_connections: int = setting(
        0,
        "Most connections of one principal to a node; by another one he is refused with `too_many_connections`.",
        range=(0, 1_000_000),
        hazard="Clients have one for each request that is open.",
    )
    principal_topics: int = setting(
        0,
        "Most topics that one principal may have made, of those made while he had a limit of topics or queues; more "
        "are refused with `too_many_topics`.",
        range=(0, 1_000_000),
        hazard="Deleting topics makes room.",
    )
    principal_queues: int = setting(
        0,
        "Most queues that these may have together, and most queues with names that one principal may have made in a "
        "shard; more are refused with `too_many_queues`.",
        range=(0, 2**40),
        hazard="Queues cost once they are used.",
    )
    principal_groups: int = setting(
        0,
        "Most consumer groups of one principal in a shard, of those made since its leader began to lead; more are "
        "refused with `too_many_groups`.",
        range=(0, 1_000_000),
        hazard="A group commits in every shard of its topics.",
    )
    principal_transactions: int = setting(
        0,
        "Most transactions of one principal in a shard that are open or not delivered; more are refused with "
        "`too_many_transactions`.",
        range=(0, 1_000_000),
        hazard="Too few, and producers wait for each other.",
    )
    principal_producers: int = setting(
        0,
        "Most idempotent producers that one principal may begin at a node within `producer_expiry_ms`, one for each "
        "shard that a producer sends to; more are refused with `too_many_producers`.",
        range=(0, 1_000_000_000),
        hazard="Every start of a program begins some.",
    )
    principal_schedules: int = setting(
        0,
        "Most schedules of one principal in a shard, of those made since its leader began to lead; more are refused "
        "with `too_many_schedules`.",
        range=(0, 10_000),
        hazard="Deleting schedules makes room.",
    )
    max_inflight_bytes: int = setting(
        256 * MIB,
        "Memory for request bodies and answers in flight.",
        range=(1 * MIB, 1024 * 1024 * MIB),
        hazard="Requests wait for it; above the machine's memory it protects nothing.",
    )
    backlog_redirect_bytes: int = setting(
        64 * MIB,
        "In a cluster: a consumer that has more than this to read of a shard, beyond what is in memory, is sent to a "
        "follower. 0: never.",
        range=(0, 1024 * 1024 * MIB),
        hazard="Too small, and consumers change nodes for little; too large, and their reads disturb the leader.",
    )
    scrub_cycle_ms: int = setting(
        30 * 24 * 3_600_000,
        "Every file of tables and checkpoints is read about once in so long, to see whether it is whole. 0: never.",
        range=(0, 365 * 24 * 3_600_000),
        hazard="Short: the disk is busy with it, at 16 MiB/s at most; long: damage is found late.",
    )
    forward: Forward = setting(
        Forward.PASS,
        "In a cluster, requests for a shard that another node leads: `pass` them on to the leader, `redirect` the "
        "client there (307), or `refuse` them with the leader's URL (421). The header `Lsmq-Forward` of a request "
        "comes before it. Client libraries know the leaders, and ask to be refused.",
        hazard="`pass` costs both nodes' time for each such request; `redirect` needs clients that follow.",
    )
    max_forwarded: int = setting(
        64,
        "Most requests that are passed on to one other node at a time, held long polls included; more are refused "
        "with `unavailable`.",
        range=(1, 512),
        hazard="Each holds a connection of the 1,024 that a node has for all others.",
    )
    metrics_series: int = setting(
        100,
        "Of metrics by topic, or by group and topic: most series of each, those of the biggest; all others are summed "
        "as `(others)`. 0: no names.",
        range=(0, 100_000),
        hazard="Each is kept by Prometheus for as long as it keeps anything.",
    )
    read_threads: int = setting(4, "Threads that read from disk for consumers.", range=(1, 256))
    sendfile_min_bytes: int = setting(
        64 * KIB,
        "Answers with fewer bytes in files than this are read into memory, not sent by sendfile.",
        range=(0, 1024 * MIB),
    )
    body_timeout_ms: int = setting(
        30_000,
        "Longest time a request's body may take to arrive.",
        range=(100, 3_600_000),
        hazard="Too short cuts slow clients off; too long lets them hold memory.",
    )
    answer_timeout_ms: int = setting(
        60_000,
        "Longest time the rest of an answer may wait for a client that does not take it.",
        range=(100, 3_600_000),
        hazard="Too short cuts slow clients off; too long lets them hold memory.",
    )
    slow_write_delay_ms: int = setting(
        20,
        "Delay of each write while flushing and merging fall behind.",
        range=(0, 10_000),
        hazard="With 0 writers run into refusals unbraked.",
    )
    shutdown_grace_ms: int = setting(
        10_000,
        "Time from SIGTERM to the end, writes in flight included.",
        range=(100, 600_000),
        hazard="What supervises the process must wait longer before it kills.",
    )
    log_format: LogFormat = setting(LogFormat.CONSOLE, "`console` or `json`, on standard error.")
    cluster: ClusterConfig | None = setting(
        None, "Table of the node's place in a cluster. Left out: a node of its own, without replicas."
    )

    @classmethod
    def load(cls, file: Path | None = None, environ: Mapping[str, str] | None = None, **overrides: Any) -> NodeConfig:
        """The configuration from all sources, checked.

        Args:
            file: a TOML file with the fields at its top level.
            environ: usually ``os.environ``; ``LSMQ_PORT=7601`` sets ``port``.
            overrides: fields by name; one that is None counts as not given.

        Raises:
            InvalidConfig: naming the setting, where it came from, and what would be right.
        """
        values: dict[str, Any] = {}
        cluster: dict[str, Mapping[str, Any]] = {}

        def take(name: str, value: Any, source: str) -> None:
            if name not in _TYPES:
                raise unknown_setting(source, name, _TYPES)
            if name == "data":
                values["data"], *further = data_directories(value, f"{source}: {name}")
                values["further_data"] = tuple(further)
            elif name == "cluster" and not isinstance(value, ClusterConfig):
                if not isinstance(value, Mapping):
                    raise InvalidConfig(f"{source}: cluster is {value!r}; it must be a table", setting=name)
                cluster[source] = value
            else:
                values[name] = convert(value, _TYPES[name], f"{source}: {name}")

        if file is not None:
            for name, value in _read_toml(file).items():
                take(name, value, str(file))
        for variable, text in (environ or {}).items():
            if variable.startswith(CLUSTER_PREFIX):
                name = variable.removeprefix(CLUSTER_PREFIX).lower()
                cluster[f"environment {variable}"] = {name: text}
            elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in FOREIGN_VARIABLES:
                take(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), text, f"environment {variable}")
        for name, value in overrides.items():
            if value is not None:
                take(name, value, "argument")
        if "data" not in values:
            raise InvalidConfig("no data directory given: set data (--data DIR, or LSMQ_DATA)", setting="data")
        if cluster:
            values["cluster"] = ClusterConfig.load(cluster)
        config = cls(**values)
        config.validate()
        return config

    def validate(self) -> None:
        """Check every range and what must hold between settings. Raises :class:`InvalidConfig`."""
        check_ranges(self)
        if not self.host:
            raise InvalidConfig("host is empty; use 127.0.0.1, or 0.0.0.0 for every interface", setting="host")
        for smaller, larger in _ORDER:
            if getattr(self, smaller) > getattr(self, larger):
                raise InvalidConfig(
                    f"{smaller} ({getattr(self, smaller)}) is above {larger} ({getattr(self, larger)}); "
                    f"raise {larger} or lower {smaller}",
                    setting=smaller,
                )
        if 2 * self.max_message_bytes > self.memtable_bytes:
            raise InvalidConfig(
                f"max_message_bytes ({self.max_message_bytes}) is above half of memtable_bytes "
                f"({self.memtable_bytes}); raise memtable_bytes",
                setting="memtable_bytes",
            )
        if self.segment_bytes % _LOG_BLOCK_BYTES:
            raise InvalidConfig(
                f"segment_bytes is {self.segment_bytes}; it must be a multiple of {_LOG_BLOCK_BYTES}",
                setting="segment_bytes",
            )
        if self.advertised_url is not None and not self.advertised_url.startswith(("http://", "https://")):
            raise InvalidConfig(
                f"advertised_url is {self.advertised_url!r}; it must begin with http:// or https://",
                setting="advertised_url",
            )
        self.check_disks()
        check_tls(self)
        check_naming(self)
        self.check_backups()
        if self.cluster is not None:
            self._validate_cluster(self.cluster)

    def _validate_cluster(self, cluster: ClusterConfig) -> None:
        cluster.validate()
        peer_files(self)
        if self.shards != 1:
            raise InvalidConfig(
                f"shards is {self.shards}; in a cluster, shards are the cluster's: set cluster.shards instead",
                setting="shards",
            )
        if cluster.url is None and self.advertised_url is None:
            raise InvalidConfig(
                f"node {cluster.node!r} is none of the voters, so nobody knows its address: set advertised_url and "
                "cluster.internal_url",
                setting="advertised_url",
            )

    def share_of(self, most: int) -> int:
        """How many of so many things that clients make or hold one address may have: one at least."""
        if self.address_share_percent is None and is_loopback(self.exposed_host) and not self.trusted_proxies:
            return most  # All who ask are one address, and of one machine.
        return max(1, most * self.share_percent // 100)

    @property
    def share_percent(self) -> int:
        """``address_share_percent``, of connections and memory."""
        return 50 if self.address_share_percent is None else self.address_share_percent

    @property
    def inflight_share_bytes(self) -> int:
        """What requests and answers of one address may hold: one of each at least."""
        share = self.max_inflight_bytes * self.share_percent // 100
        return min(max(share, self.max_request_bytes, self.max_response_bytes), self.max_inflight_bytes)

    @property
    def fetch_session_share_bytes(self) -> int:
        """What fetch sessions of one address may take."""
        return self.max_fetch_session_bytes * self.share_percent // 100

    @property
    def max_batch_bytes(self) -> int:
        """What the messages of one batch may have together: a memtable holds two, a request one."""
        return min(self.memtable_bytes // 2, self.max_request_bytes)

    @property
    def public_url(self) -> str:
        """How clients reach this node."""
        if self.advertised_url is not None:
            return self.advertised_url.rstrip("/")
        if self.cluster is not None and self.cluster.url is not None:
            return self.cluster.url
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls_cert is None else 'https'}://{host}:{self.port}"

    def to_dict(self) -> dict[str, Any]:
        """The effective values in plain types, for the log and the status page."""
        values = {name: plain(getattr(self, name)) for name in known_fields(type(self))}
        values["data"] = self.data_text
        values["cluster"] = self.cluster.to_dict() if self.cluster is not None else None
        return values


_TYPES: dict[str, Any] = {name: typing.get_type_hints(NodeConfig)[name] for name in known_fields(NodeConfig)}


_LOG_BLOCK_BYTES = 32 * KIB

#: The first must not be above the second.
_ORDER = (
    ("max_message_bytes", "max_request_bytes"),
    ("max_message_bytes", "max_response_bytes"),
    ("max_request_bytes", "max_inflight_bytes"),
    ("max_response_bytes", "max_inflight_bytes"),
    ("max_message_bytes", "max_push_bytes"),
    ("segment_bytes", "wal_keep_bytes"),
)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise InvalidConfig(f"{file}: cannot be read: {error.strerror}", setting="config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{file}: not valid TOML: {error}", setting="config") from error
