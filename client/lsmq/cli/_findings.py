"""What an examination of a store finds, as it is printed: see ``lsmq repair`` and ``lsmq verify``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from lsmq.cli._process import drop_output
from lsmq.cli.render import print_table, yes_or_no

#: Of each kind of finding so many are shown to people; scripts get all.
_SHOWN = 20
_TITLES = {
    "damage": "Damaged",
    "loss": "Lost messages",
    "unknown": "Not known any more",
    "renamed": "Names that are lost",
    "unplaced": "Whole, but nobody knows at which offsets",
    "remark": "Remarks",
}


class FindingsReport:
    """Findings as they come: printed at once for scripts, the first of each kind kept for people."""

    def __init__(self, print_one: Callable[[Any], None] | None) -> None:
        self._print_one = print_one
        self._kept: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _TITLES}
        self._counts: Counter[str] = Counter()

    def add(self, found: dict[str, Any]) -> None:
        if self._print_one is not None:
            try:
                self._print_one(found)
            except BrokenPipeError:  # All is examined even so: what the command ends with is of all.
                drop_output()
            return
        kind = found.pop("finding")
        self._counts[kind] += 1
        if len(self._kept[kind]) < _SHOWN:
            self._kept[kind].append(found)

    def show(self) -> None:
        for kind, kept in self._kept.items():
            if not kept:
                continue
            if "what" in kept[0]:
                click.echo(f"{_TITLES[kind]}:")
                for found in kept:
                    click.echo(f"  {found['what']}")
            else:
                rows = [[yes_or_no(value) for value in found.values()] for found in kept]
                print_table(list(kept[0]), rows, title=_TITLES[kind])
            more = self._counts[kind] - len(kept)
            if more:
                click.echo(f"  ... and {more} more; --json lists all")
            click.echo()
