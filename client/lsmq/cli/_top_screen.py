"""A look at a cluster as a screen: tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lsmq.cli._top_watch import GroupLook, Look, NodeLook, TopicLook
from lsmq.cli.render import clock_text, counted, size_text

_MOST_PROBLEMS: Final = 3
_GAP: Final = 2
_FEWEST_ROWS: Final = 3
#: Lines of a table beside its rows: title, head, and a rule.
_FRAME_LINES: Final = 4
_STYLES: Final = {"ok": "green", "new": "yellow", "not ready": "red", "silent": "red"}


@dataclass(frozen=True, slots=True)
class _Column:
    """``weight``: where there is no room for all, those with the least go first."""

    title: str
    text: Callable[[Any], str]
    weight: int
    right: bool = True


def rate_text(count: float) -> str:
    """Something a second, for people."""
    return f"{count:.1f}" if 0 < count < 10 else f"{count:,.0f}"


def _ms_text(ms: float) -> str:
    return f"{ms:g} ms" if ms else "-"


def _state_text(node: NodeLook) -> str:
    if node.silent_since_ms is None:
        return node.state
    return f"silent since {clock_text(node.silent_since_ms)}"


def _figure(title: str, name: str, say: Callable[[float], str], weight: int) -> _Column:
    def text(node: NodeLook) -> str:
        return say(node.figures[name]) if name in node.figures else "-"

    return _Column(title, text, weight)


_NODES: Final = (
    _Column("node", lambda node: node.node, 9, right=False),
    _Column("state", _state_text, 9, right=False),
    _figure("in/s", "in_per_s", rate_text, 8),
    _figure("out/s", "out_per_s", rate_text, 8),
    _figure("bytes in/s", "in_bytes_per_s", size_text, 5),
    _figure("bytes out/s", "out_bytes_per_s", size_text, 5),
    _figure("p50", "send_p50_ms", _ms_text, 4),
    _figure("p99", "send_p99_ms", _ms_text, 6),
    _figure("tables", "table_bytes", size_text, 3),
    _figure("disk free", "disk_free_bytes", size_text, 6),
    _figure("memory", "memory_bytes", size_text, 5),
    _Column("leads", lambda node: str(node.leads), 2),
    _Column("not in sync", lambda node: str(node.replicas_out_of_sync), 7),
    _figure("stopped", "parts_stopped", lambda count: f"{count:.0f}", 7),
)
_TOPICS: Final = (
    _Column("topic", lambda topic: topic.topic, 9, right=False),
    _Column("in/s", lambda topic: rate_text(topic.in_per_s), 8),
    _Column("out/s", lambda topic: rate_text(topic.out_per_s), 8),
    _Column("bytes in/s", lambda topic: size_text(topic.in_bytes_per_s), 5),
    _Column("bytes out/s", lambda topic: size_text(topic.out_bytes_per_s), 5),
)
_GROUPS: Final = (
    _Column("group", lambda group: group.group, 9, right=False),
    _Column("topic", lambda group: group.topic, 7, right=False),
    _Column("lag", lambda group: f"{group.lag:,}", 9),
)
#: Orders of topics by their names.
ORDERS: Final[Mapping[str, Callable[[TopicLook], Any]]] = MappingProxyType(
    {
        "in": lambda topic: -topic.in_per_s,
        "out": lambda topic: -topic.out_per_s,
        "bytes-in": lambda topic: -topic.in_bytes_per_s,
        "bytes-out": lambda topic: -topic.out_bytes_per_s,
        "name": lambda topic: topic.topic,
    }
)


def screen(look: Look, *, width: int, height: int, order: str = "in") -> RenderableType:
    """All of it, at most ``width`` columns wide; of topics, in an ``order`` of :data:`ORDERS`, and of groups as many as
    ``height`` has lines for, and a few at least."""
    name = "a node of its own" if look.cluster is None else f"cluster {look.cluster}"
    head = Text(f"{clock_text(look.time_ms)}  {name}  ", no_wrap=True, overflow="ellipsis")
    if not look.problems:
        head.append(f"well: {counted(len(look.nodes), 'node')}, {counted(look.shards, 'shard')}", "green")
    else:
        head.append(f"not well: {counted(len(look.problems), 'problem')}", "bold red")
    told = [Text(f"  {problem}", "red") for problem in look.problems[:_MOST_PROBLEMS]]
    more = len(look.problems) - _MOST_PROBLEMS
    if more > 0:
        told.append(Text(f"  ... and {more} more: lsmq status", "red"))
    nodes = _table(_NODES, look.nodes, width, style=lambda node: _STYLES[node.state] if node.state != "ok" else "")
    topics, groups = sorted(look.topics, key=ORDERS[order]), list(look.groups)
    room = height - len(told) - len(look.nodes) - 3 * _FRAME_LINES
    few = max(_FEWEST_ROWS, room // 2, room - len(topics))
    shown_groups = groups[:few]
    shown_topics = topics[: max(_FEWEST_ROWS, room - len(shown_groups))]
    return Group(
        head,
        *told,
        nodes,
        *_titled(f"Topics, by {order}", _TOPICS, shown_topics, len(topics), width),
        *_titled("Groups that are behind", _GROUPS, shown_groups, len(groups), width),
    )


def _titled(
    title: str, columns: Sequence[_Column], items: Sequence[TopicLook] | Sequence[GroupLook], count: int, width: int
) -> tuple[RenderableType, ...]:
    """A table with what it is of above it; nothing where it is of nothing."""
    if not items:
        return ()
    more = f" ({len(items)} of {count})" if len(items) < count else ""
    return Text(f"{title}{more}", "bold"), _table(columns, items, width, lambda item: "")


def _table(columns: Sequence[_Column], items: Sequence[Any], width: int, style: Callable[[Any], str]) -> Table:
    cells = {column.title: [column.text(item) for item in items] for column in columns}
    widths = {title: max(map(len, (title, *texts))) + _GAP for title, texts in cells.items()}
    kept = list(columns)
    while len(kept) > 1 and sum(widths[column.title] for column in kept) > width:
        kept.remove(min(reversed(kept), key=lambda column: column.weight))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for column in kept:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis")
    for place, item in enumerate(items):
        table.add_row(*(Text(cells[column.title][place]) for column in kept), style=style(item))
    return table
