"""The configuration of one node: a frozen dataclass, read from TOML, environment and arguments.

Later sources win: defaults, then the TOML file, then ``LSMQ_<FIELD>`` in the environment, then keyword
overrides (the command line). A key that no field has is refused wherever it comes from, since a misspelt
limit that is silently ignored is found out at the worst moment.
"""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from lsmq.errors import InvalidRequest
from lsmq_node.storage import FlushMode

KIB = 1024
MIB = 1024 * KIB

ENVIRONMENT_PREFIX = "LSMQ_"
#: Variables with our prefix that are not the node's: where clients connect to, and which file to read.
FOREIGN_VARIABLES = frozenset({"LSMQ_URL", "LSMQ_CONFIG"})


class InvalidConfig(InvalidRequest):
    """A setting is unknown, of the wrong type or out of its range; ``details`` name ``setting``."""

    code = "invalid_config"
    status = 500


class LogFormat(Enum):
    """How log lines look: for people or for machines."""

    CONSOLE = "console"
    JSON = "json"


class Compression(Enum):
    """How table blocks are stored."""

    NONE = "none"
    ZSTD = "zstd"


def _setting(default: Any, description: str) -> Any:
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Everything a node can be told. Field names end in their unit.

    :meth:`validate` checks ranges and what must hold between fields; :meth:`load` calls it.
    """

    data: Path = field(metadata={"description": "Directory of the node's files. Created when missing."})
    host: str = _setting("127.0.0.1", "Address to listen on. `0.0.0.0` is every IPv4 interface.")
    port: int = _setting(7600, "Port to listen on; 0 takes any free one.")
    advertised_url: str | None = _setting(
        None, "URL that clients reach this node by, when it is not `http://host:port`."
    )
    shards: int = _setting(1, "Shards of this node. Fixed once the data directory exists.")

    flush_mode: FlushMode = field(
        default=FlushMode.SYNC,
        metadata={"description": "`sync`: acknowledge after fdatasync. `async`: after write(2)."},
    )
    flush_interval_ms: int = _setting(100, "With `async`, the longest time between two fdatasyncs.")
    flush_bytes: int = _setting(8 * MIB, "With `async`, the most bytes written but not yet synced, per shard.")
    memtable_bytes: int = _setting(64 * MIB, "Size at which a memtable is frozen and flushed, per shard.")
    cache_bytes: int = _setting(64 * MIB, "Block cache, per shard.")
    segment_bytes: int = _setting(64 * MIB, "Size of a log segment file. Fixed once the data directory exists.")
    min_free_bytes: int = _setting(64 * MIB, "Writes are refused below this much free disk space.")
    compression: Compression = field(
        default=Compression.NONE, metadata={"description": "Of table blocks: `none` or `zstd`."}
    )
    retention_interval_ms: int = _setting(10_000, "How often messages beyond a topic's retention are dropped.")

    max_message_bytes: int = _setting(1 * MIB, "Largest message: key, tag, properties and body together.")
    max_request_bytes: int = _setting(8 * MIB, "Largest request body, also after decompression.")
    max_response_bytes: int = _setting(8 * MIB, "Most bytes of messages in one answer.")
    max_messages_per_request: int = _setting(10_000, "Most messages in one request or answer.")
    max_queues_per_topic: int = _setting(16_000_000, "Most queues a topic may have.")
    max_queues_per_request: int = _setting(1_000_000, "Most queues one request may name.")
    max_waiters: int = _setting(10_000, "Most long polls held at one time.")
    max_wait_ms: int = _setting(60_000, "Longest time a long poll is held.")
    max_inflight_bytes: int = _setting(256 * MIB, "Memory for request bodies and answers in flight.")
    read_threads: int = _setting(4, "Threads that read from disk for consumers.")
    sendfile_min_bytes: int = _setting(
        64 * KIB, "Answers with fewer bytes in files than this are read into memory, not sent by sendfile."
    )
    body_timeout_ms: int = _setting(30_000, "Longest time a request's body may take to arrive.")
    slow_write_delay_ms: int = _setting(20, "Delay of each write while flushing and merging fall behind.")
    shutdown_grace_ms: int = _setting(10_000, "Time from SIGTERM to the end, writes in flight included.")
    log_format: LogFormat = field(
        default=LogFormat.CONSOLE, metadata={"description": "`console` or `json`, on standard error."}
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
        known = {entry.name: entry for entry in fields(cls)}
        values: dict[str, Any] = {}

        def take(name: str, value: Any, source: str) -> None:
            if name not in known:
                raise InvalidConfig(
                    f"{source}: there is no setting {name!r}; the settings are {', '.join(known)}",
                    setting=name,
                )
            values[name] = _convert(value, _TYPES[name], f"{source}: {name}")

        if file is not None:
            for name, value in _read_toml(file).items():
                take(name, value, str(file))
        for variable, text in (environ or {}).items():
            if variable.startswith(ENVIRONMENT_PREFIX) and variable not in FOREIGN_VARIABLES:
                take(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), text, f"environment {variable}")
        for name, value in overrides.items():
            if value is not None:
                take(name, value, "argument")
        if "data" not in values:
            raise InvalidConfig("no data directory given: set data (--data DIR, or LSMQ_DATA)", setting="data")
        config = cls(**values)
        config.validate()
        return config

    def validate(self) -> None:
        """Check every range and what must hold between settings. Raises :class:`InvalidConfig`."""
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidConfig(f"{name} is {value}; it must be {low} to {high}", setting=name)
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

    def to_dict(self) -> dict[str, Any]:
        """The effective values in plain types, for the log and the status page."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)}


_LOG_BLOCK_BYTES = 32 * KIB

_TYPES: dict[str, Any] = typing.get_type_hints(NodeConfig)

_RANGES: dict[str, tuple[int, int]] = {
    "port": (0, 65_535),
    "shards": (1, 256),
    "flush_interval_ms": (1, 60_000),
    "flush_bytes": (4 * KIB, 1024 * MIB),
    "memtable_bytes": (64 * KIB, 4096 * MIB),
    "cache_bytes": (0, 1024 * 1024 * MIB),
    "segment_bytes": (64 * KIB, 4096 * MIB),
    "min_free_bytes": (0, 1024 * 1024 * MIB),
    "retention_interval_ms": (1, 86_400_000),
    "max_message_bytes": (1, 64 * MIB),
    "max_request_bytes": (1 * KIB, 256 * MIB),
    "max_response_bytes": (1 * KIB, 256 * MIB),
    "max_messages_per_request": (1, 1_000_000),
    "max_queues_per_topic": (1, 16_000_000),
    "max_queues_per_request": (1, 16_000_000),
    "max_waiters": (0, 1_000_000),
    "max_wait_ms": (0, 3_600_000),
    "max_inflight_bytes": (1 * MIB, 1024 * 1024 * MIB),
    "read_threads": (1, 256),
    "sendfile_min_bytes": (0, 1024 * MIB),
    "body_timeout_ms": (100, 3_600_000),
    "slow_write_delay_ms": (0, 10_000),
    "shutdown_grace_ms": (100, 600_000),
}

#: The first must not be above the second.
_ORDER = (
    ("max_message_bytes", "max_request_bytes"),
    ("max_message_bytes", "max_response_bytes"),
    ("max_request_bytes", "max_inflight_bytes"),
    ("max_response_bytes", "max_inflight_bytes"),
)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise InvalidConfig(f"{file}: cannot be read: {error.strerror}", setting="config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{file}: not valid TOML: {error}", setting="config") from error


def _convert(value: Any, kind: Any, what: str) -> Any:
    """``value`` as ``kind``; text, as the environment has it, is parsed."""
    if typing.get_origin(kind) is types.UnionType:
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    if kind is int and isinstance(value, str):
        try:
            return int(value.replace("_", ""))
        except ValueError:
            raise InvalidConfig(f"{what} is {value!r}; it must be an integer", setting=what) from None
    if kind is Path and isinstance(value, str):
        return Path(value)
    if issubclass(kind, Enum) and isinstance(value, str | Enum):
        text = value.value if isinstance(value, Enum) else value
        try:
            return kind(text)
        except ValueError:
            choices = ", ".join(repr(choice.value) for choice in kind)
            raise InvalidConfig(f"{what} is {text!r}; it must be one of {choices}", setting=what) from None
    name = {int: "an integer", str: "text", Path: "a path"}.get(kind, f"one of {kind.__name__}")
    raise InvalidConfig(f"{what} is {value!r}; it must be {name}", setting=what)


def _plain(value: Any) -> Any:
    match value:
        case Path():
            return str(value)
        case Enum():
            return value.value
        case _:
            return value
