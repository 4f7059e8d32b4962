"""``lsmq bench``: run a benchmark by name."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from lsmq.cli._node import NodeNotInstalled, need_node
from lsmq.cli.options import json_option
from lsmq.cli.render import print_json


def _benches() -> dict[str, Callable[..., Any]]:
    with need_node("lsmq bench"):
        module = importlib.import_module("lsmq_lab.benchmarks")
        benches: dict[str, Callable[..., Any]] = getattr(module, "BENCHES", {})  # Imports each of them.
        return benches


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        return [CompletionItem(name) for name in _benches() if name.startswith(incomplete)]
    except NodeNotInstalled:
        return []


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("name", shell_complete=_complete, required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@json_option
@click.option("-h", "--help", "show_help", is_flag=True, help="Show this message; after NAME, its own options.")
@click.pass_context
def bench(context: click.Context, name: str | None, arguments: tuple[str, ...], as_json: bool, show_help: bool) -> None:
    """Run benchmark NAME with its ARGUMENTS; without a name, list what there is.

    \b
      lsmq bench
      lsmq bench store --help
      lsmq bench store --json
    """
    if show_help and name is None:
        click.echo(context.get_help())
        return
    benches = _benches()
    if name is None:
        for known, run in benches.items():
            summary = (run.__doc__ or "").strip().partition("\n")[0]
            click.echo(f"{known:<12} {summary}")
        return
    if name not in benches:
        raise click.UsageError(f"there is no benchmark {name!r}; there are: {', '.join(benches) or 'none'}")
    # One that is ended in any way takes down what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with need_node(f"lsmq bench {name}"):
        result = benches[name](["--help"] if show_help else list(arguments), as_json=as_json)
    if as_json and result is not None:
        print_json(result)
