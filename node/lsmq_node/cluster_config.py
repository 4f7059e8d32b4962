"""The configuration of a node's place in a cluster: the table ``[cluster]`` of its TOML file.

Most of it must be the same on all nodes; what differs is ``node`` and the addresses that the node itself listens on.
``voters`` names the nodes that agree on the control state from the founding on, with their addresses, and is the same
everywhere. A node that is not among them joins as one that does not vote, and may take the place of one that does.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lsmq_coordinator.balancer import BalanceTiming
from lsmq_coordinator.deaf_leaders import DeafTiming
from lsmq_coordinator.liveness import LivenessTiming
from lsmq_coordinator.overseer import OverseerTiming
from lsmq_coordinator.raft_terms import RaftTiming
from lsmq_coordinator.resigning import ResignTiming
from lsmq_coordinator.voter_care import VoterTiming
from lsmq_node.cluster_nodes import Founder, VoterAddresses, check_label, check_nodes, check_url, is_address, read_nodes
from lsmq_node.cluster_zookeeper import TLS_SCHEME, check_zookeeper
from lsmq_node.replication.control import Timings
from lsmq_node.settings import KIB, MIB, InvalidConfig, check_ranges, convert, plain, setting, unknown_setting

PREFIX = "cluster."
#: Clocks of two machines may run this much apart for leases to hold.
CLOCK_RATE_MARGIN = 1.2

ENVIRONMENT_PREFIX = "LSMQ_CLUSTER_"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VOTER_COUNTS = (1, 3, 5)
#: The first must not be above the second; why.
_ORDER = (
    ("min_in_sync", "replicas", "a write cannot be on more disks than there are replicas"),
    ("lease_ms", "replica_timeout_ms", "a follower would leave before its leader knows that it is cut off itself"),
    ("replica_timeout_ms", "replica_lag_ms", "a follower not heard of has not caught up either"),
    ("replica_lag_ms", "ack_timeout_ms", "writes would fail before a slow follower leaves the in-sync set"),
    ("node_timeout_ms", "ack_timeout_ms", "writes would fail before a dead follower is noticed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """A node's place in its cluster. Field names end in their unit.

    :meth:`load` takes plain values, as TOML or the environment has them, and calls :meth:`validate`.
    """

    name: str = setting(
        "lsmq",
        "Name of the cluster: letters, digits, `.`, `_`, `-`. Clients find it in ZooKeeper under `/lsmq/<name>`.",
        hazard="Two clusters of one name in one ZooKeeper refuse each other's routes.",
    )
    node: str = setting(
        ...,
        "Id of this node in the cluster, such as `n1`.",
        hazard="Two nodes of one id, or an id given to another data directory, take turns in being believed.",
    )
    host: str = setting(
        "",
        "Label of the machine this node runs on. No two replicas of a shard lie on nodes of one host. Left out: that "
        "of its entry in `voters`, else its id, a machine by itself.",
        hazard="Two processes of one machine without it hold two replicas that fail together.",
    )
    rack: str = setting(
        "",
        "Label of what machines share: a rack, a room, a zone. Replicas of a shard are spread over racks as evenly as "
        "hosts allow, once all nodes have one. Left out: that of its entry in `voters`.",
        hazard="Where it is wrong, replicas fail together that should not.",
    )
    shards: int = setting(
        3,
        "Shards that the cluster is founded with. Each has a log, a leader and replicas of its own. Fixed at founding; "
        "`lsmq shard grow` adds to them.",
        range=(1, 256),
        hazard="Fewer than nodes leave nodes without a leader's work; many divide the group commit of one disk.",
    )
    replicas: int = setting(
        3,
        "Replicas of each shard, on as many nodes.",
        range=(1, 7),
        hazard="With 1 a lost disk is lost data; with 2 writes wait while one of both nodes is away.",
    )
    min_in_sync: int = setting(
        0,
        "Disks that a write is on before `quorum` acknowledges it. Left out or 0: a majority of `replicas`.",
        range=(0, 7),
        hazard="With 1 an acknowledged write may be on one disk only; with `replicas` one node that is away stops "
        "writes. Fixed at founding.",
    )
    secret_file: Path = setting(
        ...,
        "File with the secret that all nodes share: at least 16 random bytes, readable by its owner alone. While it is "
        "changed for another one, two lines: the first signs, both are accepted.",
        hazard="Whoever knows it commands the cluster. It authenticates, it does not encrypt.",
    )
    tls_ca: Path | None = setting(
        None,
        "PEM file with the authority of the nodes' certificates. With it nodes speak TLS 1.3 with each other, and "
        "each shows a certificate of this authority. The same on all nodes. Read again when it changes.",
        hazard="Whoever has a certificate of it may speak to nodes, and needs only the secret to be one: let it issue "
        "none for clients.",
    )
    tls_cert: Path | None = setting(
        None, "PEM file with the certificate that other nodes are shown. Left out: `tls_cert`, that for clients."
    )
    tls_key: Path | None = setting(None, "PEM file with its private key. Left out: `tls_key`.")
    internal_host: str = setting(
        "127.0.0.1",
        "Address to listen on for other nodes: control, replication and snapshots.",
        hazard="Bind a network that only nodes reach: without `cluster.tls_ca` contents are not encrypted.",
    )
    internal_port: int = setting(7601, "Port for other nodes; 0 takes any free one.", range=(0, 65_535))
    internal_url: str | None = setting(
        None,
        "URL that other nodes reach this one by. Left out: `internal_url` of its entry in `voters`, else "
        "`http://internal_host:internal_port`.",
        hazard="An address that others cannot reach makes the node dead to them.",
    )
    raft_host: str | None = setting(None, "Address to listen on for Raft, on voters. Left out: `internal_host`.")
    raft_port: int = setting(7602, "Port for Raft, on voters.", range=(1, 65_535))
    raft_address: str | None = setting(
        None,
        "`host:port` by which voters reach this node's Raft port, should it take the place of one that is gone (`lsmq "
        "voter replace`). Left out: `raft` of its entry in `voters`, else the host of `internal_url` with `raft_port`.",
        hazard="An address that others cannot reach makes a voter that nobody hears.",
    )
    raft_heartbeat_ms: int = setting(
        50,
        "Time between two signs of life among the voters.",
        range=(10, 10_000),
        hazard="Shorter costs packets; longer needs `raft_election_ms` to be longer.",
    )
    raft_election_ms: int = setting(
        300,
        "A voter that has not heard the leader of the control plane for so long, up to twice that, calls an election. "
        "One whose process ended is replaced sooner. Where writes to the journal take more than a third of it, or "
        "threads come late, voters wait longer by themselves.",
        range=(50, 60_000),
        hazard="Below three heartbeats one late packet costs an election; longer leaves the cluster without decisions "
        "for longer. The same on all voters.",
    )
    raft_sync_delay_ms: int = setting(
        0,
        "Time added to each sync of the control plane's journal, to try how a cluster does on slow disks.",
        range=(0, 10_000),
        hazard="For drills only.",
    )
    voters: Mapping[str, VoterAddresses] = field(
        metadata={
            "description": "The 1, 3 or 5 nodes that keep the control state: a table `[cluster.voters.ID]` each, with "
            "`url`, `internal_url` and `raft`, and optionally `host`, `rack` and `only_votes` (no replicas are founded "
            "there). The same on all nodes. For the first start: who votes later is agreed on (`lsmq voter replace`), "
            "and then this says no more than whom a node asks that knows nothing yet.",
            "hazard": "At the founding two files that differ can make two clusters out of one.",
            "range": None,
        }
    )
    founders: Mapping[str, Founder] = field(
        default_factory=dict,
        metadata={
            "description": "Nodes that do not vote, and hold shards from the founding on: a table "
            "`[cluster.founders.ID]` each, with `url` and `internal_url`, and optionally `host` and `rack`. Processes "
            "of one machine (`processes`) name themselves. Read at founding.",
            "hazard": "One that never comes leaves its shards without a leader.",
            "range": None,
        },
    )
    first_leaders: tuple[str, ...] = setting(
        (),
        "Nodes that lead first: shard `i` the item `i` modulo their number. Left out: spread evenly. Read at founding; "
        "as long as it is set, leaders are not evened out.",
    )
    zookeeper: str = setting(
        "",
        "ZooKeeper for clients to find routes in: `host:port,host:port`, optionally with `/path`; by TLS with `tls://` "
        "before it. Empty: none; clients then ask nodes.",
    )
    zookeeper_tls_ca: Path | None = setting(
        None,
        "PEM file with the authorities of ZooKeeper's certificates, for `tls://`. Left out: the system's. Read for "
        "each connection.",
    )
    zookeeper_tls_cert: Path | None = setting(
        None,
        "PEM file with the certificate that ZooKeeper is shown, which wants one unless it is told otherwise "
        "(`ssl.clientAuth`).",
    )
    zookeeper_tls_key: Path | None = setting(None, "PEM file with its private key.")
    zookeeper_refresh_s: int = setting(
        10,
        "Time between two comparisons of what ZooKeeper holds with what it should.",
        range=(1, 3600),
        hazard="Changes are published at once anyway; this repairs what others did to it.",
    )
    heartbeat_ms: int = setting(
        100,
        "Time between two signs of life, of nodes to the control plane and of leaders to followers.",
        range=(10, 10_000),
        hazard="Shorter costs packets; longer needs the timeouts below to be longer.",
    )
    node_timeout_ms: int = setting(
        500,
        "A node not heard of for so long is dead, and its shards get other leaders. A process that is proven to have "
        "ended need not be waited for.",
        range=(100, 600_000),
        hazard="Too short: a pause of a busy machine costs an election. Too long: writes wait longer.",
    )
    lease_ms: int = setting(
        400,
        "A leader answers only within this time of its last word with the control plane.",
        range=(50, 600_000),
        hazard="Must end before `node_timeout_ms`, or a leader that was replaced may still answer.",
    )
    clock_limit_ms: int = setting(
        1000,
        "A node whose wall clock is further from the middle one of the cluster's says so.",
        range=(10, 3_600_000),
        hazard="Times of messages, expiry and delays are as wrong as it is; beyond a minute most others count.",
    )
    replica_lag_ms: int = setting(
        1000,
        "A follower that has not caught up with its leader for so long leaves the in-sync set.",
        range=(50, 600_000),
        hazard="Too short: a slow disk leaves and joins without end. Too long: quorum writes are as slow as it.",
    )
    replica_timeout_ms: int = setting(
        500,
        "So does a follower not heard of for so long.",
        range=(50, 600_000),
        hazard="Quorum writes wait so long when a follower's machine vanishes.",
    )
    ack_timeout_ms: int = setting(
        5000,
        "A quorum write not acknowledged in this time is answered `not_enough_replicas`, and may still be stored.",
        range=(100, 600_000),
        hazard="Shorter than a failover, and clients are told of failures that would mend by themselves.",
    )
    window_bytes: int = setting(
        8 * MIB,
        "Bytes of log shipped to a follower and not yet on its disk.",
        range=(64 * KIB, 1024 * MIB),
        hazard="Memory per follower and shard; too few starve a fast disk behind a slow network.",
    )
    snapshot_bytes_per_s: int = setting(
        64 * MIB,
        "Speed at which a node fetches table files for a replica that is new or far behind.",
        range=(64 * KIB, 1024 * 1024 * MIB),
        hazard="Disk and network are shared with messages: higher slows them, lower keeps the replica away longer.",
    )

    rebuild_after_ms: int = setting(
        600_000,
        "A node that is away for so long is gone: its replicas are made again at other nodes. 0: never by itself.",
        range=(0, 7 * 86_400_000),
        hazard="Too short: a restart or a repair costs copies of all that the node holds. Too long, or never: another "
        "failure meanwhile stops writes.",
    )
    replace_voter_after_ms: int = setting(
        600_000,
        "A voter that is away for so long is gone: a node that does not vote takes its vote. 0: never by itself, only "
        "by `lsmq voter replace`. The same on all voters.",
        range=(0, 7 * 86_400_000),
        hazard="Too short: a restart or a repair changes who votes. Too long, or never: another failure meanwhile may "
        "leave no majority of the voters.",
    )
    even_out: bool = setting(
        True,
        "Whether replicas and leaders go to nodes that have fewer of them, bytes and written bytes with them, by "
        "themselves. The same on all voters.",
        hazard="Without it a node that is added gets nothing until it is told what.",
    )
    moves_at_once: int = setting(
        4,
        "Shards of the whole cluster that are given another replica at the same time, whoever asked for it.",
        range=(2, 1024),
        hazard="Each copies at `snapshot_bytes_per_s`; a node takes in one at a time in any case.",
    )

    def __post_init__(self) -> None:
        if self.min_in_sync == 0:
            object.__setattr__(self, "min_in_sync", self.replicas // 2 + 1)

    @classmethod
    def load(cls, tables: Mapping[str, Mapping[str, Any]]) -> ClusterConfig:
        """The configuration from plain values, checked.

        Args:
            tables: settings by name, for each source in rising order of precedence; the source's name stands in
                error messages. Lists and tables may be given as text, as the environment has them: names separated
                by commas, and an inline table of TOML.

        Raises:
            InvalidConfig: naming the setting, where it came from, and what would be right.
        """
        values: dict[str, Any] = {}
        for source, table in tables.items():
            for name, value in table.items():
                if name not in _TYPES:
                    raise unknown_setting(source, f"{PREFIX}{name}", (f"{PREFIX}{known}" for known in _TYPES))
                values[name] = _read(name, value, f"{source}: {PREFIX}{name}")
        for name in ("node", "secret_file", "voters"):
            if name not in values:
                raise InvalidConfig(_MISSING[name], setting=f"{PREFIX}{name}")
        config = cls(**values)
        config.validate()
        return config

    def validate(self) -> None:
        """Check every range and what must hold between settings. Raises :class:`InvalidConfig`."""
        check_ranges(self, PREFIX)
        for setting_name, text in (
            ("name", self.name),
            ("node", self.node),
            *(("voters", id) for id in self.voters),
            *(("founders", id) for id in self.founders),
        ):
            if not _NAME.fullmatch(text):
                raise InvalidConfig(
                    f"cluster.{setting_name}: {text!r} is no name; use up to 63 letters, digits, '.', '_' and '-', "
                    "beginning with a letter or digit",
                    setting=f"{PREFIX}{setting_name}",
                )
        self._validate_voters()
        tls = {"ca": self.zookeeper_tls_ca, "cert": self.zookeeper_tls_cert, "key": self.zookeeper_tls_key}
        check_zookeeper(self.zookeeper, tls)
        for smaller, larger, reason in _ORDER:
            if getattr(self, smaller) > getattr(self, larger):
                raise InvalidConfig(
                    f"cluster.{smaller} ({getattr(self, smaller)}) is above cluster.{larger} "
                    f"({getattr(self, larger)}): {reason}",
                    setting=f"{PREFIX}{smaller}",
                )
        if self.lease_ms * CLOCK_RATE_MARGIN > self.node_timeout_ms:
            raise InvalidConfig(
                f"cluster.lease_ms ({self.lease_ms}) must end before cluster.node_timeout_ms "
                f"({self.node_timeout_ms}), with a fifth to spare for clocks that run differently; or a leader that "
                f"was replaced may still answer. Set lease_ms to {int(self.node_timeout_ms / CLOCK_RATE_MARGIN)} "
                "or less",
                setting=f"{PREFIX}lease_ms",
            )
        if self.raft_election_ms < 3 * self.raft_heartbeat_ms:
            raise InvalidConfig(
                f"cluster.raft_election_ms ({self.raft_election_ms}) is below three times cluster.raft_heartbeat_ms "
                f"({self.raft_heartbeat_ms}): one late heartbeat would be taken for a failure",
                setting=f"{PREFIX}raft_election_ms",
            )
        for patient in ("lease_ms", "replica_timeout_ms"):
            if getattr(self, patient) < 2 * self.heartbeat_ms:
                raise InvalidConfig(
                    f"cluster.{patient} ({getattr(self, patient)}) is below twice cluster.heartbeat_ms "
                    f"({self.heartbeat_ms}): one late heartbeat would be taken for a failure",
                    setting=f"{PREFIX}{patient}",
                )

    def _validate_voters(self) -> None:
        where = f"{PREFIX}voters"
        if len(self.voters) not in _VOTER_COUNTS:
            raise InvalidConfig(f"cluster.voters are {len(self.voters)}; 1, 3 or 5 make sense", setting=where)
        holding = self.holders
        hosts = {node.host or id for id, node in holding.items()}
        if self.replicas > len(hosts):
            few = f"{len(holding)}" if len(hosts) == len(holding) else f"{len(holding)} on {len(hosts)} hosts"
            raise InvalidConfig(
                f"cluster.replicas is {self.replicas}, and a cluster is founded on its voters, of which there are "
                f"{few}; name more voters, or ask for fewer replicas and give a shard more of them with "
                "'lsmq shard move' when other nodes have joined",
                setting=f"{PREFIX}replicas",
            )
        check_nodes(self.voters, where)
        check_nodes({**self.voters, **self.founders}, f"{PREFIX}founders")
        addresses = {f"{where}.{id}.raft": voter.raft for id, voter in self.voters.items()}
        if self.raft_address is not None:
            addresses[f"{PREFIX}raft_address"] = self.raft_address
        for what, address in addresses.items():
            if not is_address(address):
                raise InvalidConfig(f"{what} is {address!r}; it must be host:port", setting=what)
        if len({voter.raft for voter in self.voters.values()}) < len(self.voters):
            raise InvalidConfig("two of cluster.voters have the same raft", setting=where)
        if self.internal_url is not None:
            check_url(self.internal_url, f"{PREFIX}internal_url")
        self._validate_tls()
        self._validate_labels()
        strangers = [node for node in self.first_leaders if node not in holding]
        if strangers:
            raise InvalidConfig(
                f"cluster.first_leaders: {strangers[0]!r} is none of the voters {sorted(holding)}",
                setting=f"{PREFIX}first_leaders",
            )

    def _validate_labels(self) -> None:
        """A founder's labels stand where all nodes found the same shards by them."""
        own = self._own_entry
        for name, label in (("host", self.host), ("rack", self.rack)):
            check_label(label, f"{PREFIX}{name}")
            if label and own is not None and getattr(own, name) != label:
                table = "voters" if self.is_voter else "founders"
                raise InvalidConfig(
                    f"cluster.{name} is {label!r}, and the cluster is founded by what cluster.{table}.{self.node} "
                    f"says, the same on all nodes: set {name} there",
                    setting=f"{PREFIX}{name}",
                )

    def _validate_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise InvalidConfig(
                f"of cluster.tls_cert and cluster.tls_key one is set; set cluster.{missing} as well",
                setting=f"{PREFIX}{missing}",
            )
        if self.tls_cert is not None and self.tls_ca is None:
            raise InvalidConfig(
                "cluster.tls_cert is set, and nothing says whose certificates others show: set cluster.tls_ca",
                setting=f"{PREFIX}tls_ca",
            )
        scheme = "http://" if self.tls_ca is None else "https://"
        for url in (self.advertised_internal_url, *self.control_urls.values()):
            if not url.startswith(scheme):
                raise InvalidConfig(
                    f"nodes {'do not ' if self.tls_ca is None else ''}speak TLS with each other (cluster.tls_ca), and "
                    f"one is at {url}: let all internal_url begin with {scheme}",
                    setting=f"{PREFIX}tls_ca",
                )

    @property
    def zookeeper_by_tls(self) -> bool:
        return self.zookeeper.startswith(TLS_SCHEME)

    @property
    def is_voter(self) -> bool:
        return self.node in self.voters

    @property
    def labels(self) -> dict[str, str]:
        """``host`` and ``rack`` of this node; empty where it has none."""
        own = self._own_entry
        return {name: getattr(self, name) or (getattr(own, name) if own else "") for name in ("host", "rack")}

    @property
    def holders(self) -> dict[str, Founder]:
        """The nodes that shards are founded on."""
        return {**{id: voter for id, voter in self.voters.items() if not voter.only_votes}, **self.founders}

    @property
    def _own_entry(self) -> Founder | None:
        return self.voters.get(self.node) or self.founders.get(self.node)

    @property
    def url(self) -> str | None:
        """How clients reach this node, where the cluster was founded with it."""
        return None if self._own_entry is None else self._own_entry.url.rstrip("/")

    @property
    def advertised_internal_url(self) -> str:
        """How other nodes reach this one's internal port."""
        if self.internal_url is not None:
            return self.internal_url.rstrip("/")
        if self._own_entry is not None:
            return self._own_entry.internal_url.rstrip("/")
        return f"{'http' if self.tls_ca is None else 'https'}://{self.internal_host}:{self.internal_port}"

    @property
    def advertised_raft(self) -> str:
        """``host:port`` by which voters reach this node's Raft port, whether or not it votes."""
        if self.raft_address is not None:
            return self.raft_address
        if self.node in self.voters:
            return self.voters[self.node].raft
        return f"{urlsplit(self.advertised_internal_url).hostname}:{self.raft_port}"

    @property
    def raft_bind(self) -> str:
        """``host:port`` to listen on for Raft."""
        return f"{self.raft_host or self.internal_host}:{self.raft_port}"

    @property
    def raft_voters(self) -> dict[str, str]:
        """Raft's ``host:port`` of each voter."""
        return {id: voter.raft for id, voter in self.voters.items()}

    @property
    def control_urls(self) -> dict[str, str]:
        """The internal URL of each voter."""
        return {id: voter.internal_url.rstrip("/") for id, voter in self.voters.items()}

    def replication_timings(self) -> Timings:
        """The times of the replicas' protocol."""
        return Timings(
            heartbeat_s=self.heartbeat_ms / 1000,
            retry_s=self.heartbeat_ms / 1000,
            replica_timeout_s=self.replica_timeout_ms / 1000,
            replica_lag_s=self.replica_lag_ms / 1000,
            deaf_s=4 * self.replica_timeout_ms / 1000,
            ask_elsewhere_s=self._ask_elsewhere_s,
            window_bytes=self.window_bytes,
        ).validate()

    def liveness_timing(self) -> LivenessTiming:
        """The times of the failure detector; with the defaults, its own defaults."""
        return LivenessTiming(
            node_timeout_s=self.node_timeout_ms / 1000,
            pause_s=0.6 * self.node_timeout_ms / 1000,
        )

    @property
    def _ask_elsewhere_s(self) -> float:
        """How often a leader of a shard that hears too few asks for another one."""
        return self.replica_timeout_ms / 1000

    def overseer_timing(self) -> OverseerTiming:
        """The times of the control plane's leader; with the defaults, its own defaults.

        Who could not be heard for as long as it takes to be found dead, and that long again, is out of reach.
        """
        node_timeout_s = self.node_timeout_ms / 1000
        return OverseerTiming(
            liveness=self.liveness_timing(),
            settle_s=4 * node_timeout_s,
            resign=ResignTiming(first_s=2 * node_timeout_s, longest_s=60 * node_timeout_s),
            deaf=DeafTiming(self._ask_elsewhere_s),
            unleased_s=2 * node_timeout_s,
            balance=BalanceTiming(
                rebuild_after_s=self.rebuild_after_ms / 1000,
                moves_at_once=self.moves_at_once,
                even=self.even_out,
                even_leaders=not self.first_leaders,
            ),
            voters=VoterTiming(self.replace_voter_after_ms / 1000),
        )

    def raft_timing(self) -> RaftTiming:
        """The times of Raft; with the defaults, its own defaults."""
        heartbeat_s, election_s = self.raft_heartbeat_ms / 1000, self.raft_election_ms / 1000
        standard = RaftTiming()
        return RaftTiming(
            tick_s=min(standard.tick_s, heartbeat_s),
            heartbeat_s=heartbeat_s,
            election_min_s=election_s,
            election_max_s=2 * election_s,
            fallback_s=election_s * standard.fallback_s / standard.election_min_s,
            aside_s=max(standard.aside_s, 6 * election_s),
            patience_s=max(standard.patience_s, 6 * election_s),
        )

    def to_dict(self) -> dict[str, Any]:
        """The effective values in plain types. It has no secret: only the file's name."""
        values = {entry.name: plain(getattr(self, entry.name)) for entry in fields(self)}
        values |= {"voters": {id: voter.to_dict() for id, voter in self.voters.items()}}
        values |= {"founders": {id: node.to_dict() for id, node in self.founders.items()}}
        return values


_TYPES: dict[str, Any] = typing.get_type_hints(ClusterConfig)

_MISSING = {
    "node": 'the node has no id in the cluster: set cluster.node, such as node = "n1" under [cluster]',
    "secret_file": "a cluster needs a secret that all its nodes share: set cluster.secret_file to a file with at "
    "least 16 random bytes; no address is bound without one",
    "voters": "the cluster has no voters: add a table [cluster.voters.ID] with url, internal_url and raft for each of "
    "1, 3 or 5 nodes, the same on all nodes",
}


def _read(name: str, value: Any, what: str) -> Any:
    match name:
        case "voters":
            return read_nodes(VoterAddresses, value, what)
        case "founders":
            return read_nodes(Founder, value, what)
        case "first_leaders":
            names = value.split(",") if isinstance(value, str) else value
            if not isinstance(names, list | tuple) or not all(isinstance(item, str) for item in names):
                raise InvalidConfig(f"{what} is {value!r}; it must be a list of node ids", setting=what)
            return tuple(item.strip() for item in names if item.strip())
        case _:
            return convert(value, _TYPES[name], what)
