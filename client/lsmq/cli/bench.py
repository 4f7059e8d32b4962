"""``lsmq bench``: run a benchmark by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from lsmq.cli._node import NodeNotInstalled, need_node
from lsmq.cli._options import json_option
from lsmq.cli._render import print_json


def _benches() -> dict[str, Callable[..., Any]]:
    with need_node("lsmq bench"):
        module = importlib.import_module("lsmq_node.benchmarks")
    benches: dict[str, Callable[..., Any]] = getattr(module, "BENCHES", {})
    return benches


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        return [CompletionItem(name) for name in _benches() if name.startswith(incomplete)]
    except NodeNotInstalled:
        return []


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", shell_complete=_complete, required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@json_option
def bench(name: str | None, arguments: tuple[str, ...], as_json: bool) -> None:
    """Run benchmark NAME with its ARGUMENTS; without a name, list what there is.

    \b
      lsmq bench
      lsmq bench store --json
    """
    benches = _benches()
    if name is None:
        for known, run in benches.items():
            summary = (run.__doc__ or "").strip().partition("\n")[0]
            click.echo(f"{known:<12} {summary}")
        return
    if name not in benches:
        raise click.UsageError(f"there is no benchmark {name!r}; there are: {', '.join(benches) or 'none'}")
    result = benches[name](list(arguments), as_json=as_json)
    if as_json and result is not None:
        print_json(result)
