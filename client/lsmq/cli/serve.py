"""``lsmq serve``: run a node."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import click

from lsmq.cli._node import need_node
from lsmq.cli.options import DURATION, SIZE, ProcessesType
from lsmq.errors import InvalidRequest

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--data", metavar="DIR[,DIR2...]", help="Directory of the node's files; one a disk, where there are more."
)
@click.option("--host", help="Address to listen on; 0.0.0.0 for every interface.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 takes any free one.  [default: 7600]")
@click.option("--advertised-url", metavar="URL", help="How clients reach this node, when not by host and port.")
@click.option("--tls-cert", type=_FILE, metavar="FILE", help="Speak TLS with clients: PEM file with the certificate.")
@click.option("--tls-key", type=_FILE, metavar="FILE", help="PEM file with its private key.")
@click.option("--tls-client-ca", type=_FILE, metavar="FILE", help="Authorities whose certificates clients must show.")
@click.option(
    "--tls-client-auth",
    type=click.Choice(["none", "optional", "required"]),
    help="Whether clients show a certificate.  [default: required with --tls-client-ca]",
)
@click.option(
    "--processes",
    type=ProcessesType(),
    metavar="N|auto",
    help="Processes of this machine, each with shards of its own at ports 10 apart; auto: one a core.  [default: 1]",
)
@click.option("--shards", type=int, help="Shards of this node; fixed from its first start.  [default: 1]")
@click.option(
    "--flush-mode",
    type=click.Choice(["sync", "async"]),
    help="Acknowledge a write once it is synced to disk, or once it is written.  [default: sync]",
)
@click.option("--flush-interval", "flush_interval_ms", type=DURATION, help="With async: sync this often.")
@click.option("--flush-bytes", type=SIZE, help="With async: sync after this much.")
@click.option("--memtable-bytes", type=SIZE, help="Size of a memtable.  [default: 64MiB]")
@click.option("--cache-bytes", type=SIZE, help="Size of the block cache.  [default: 64MiB]")
@click.option("--max-message-bytes", type=SIZE, help="Largest message.  [default: 1MiB]")
@click.option("--max-request-bytes", type=SIZE, help="Largest request.  [default: 8MiB]")
@click.option("--max-messages-per-request", type=int, help="Most messages in a request.  [default: 10000]")
@click.option(
    "--auth",
    type=click.Choice(["none", "token"]),
    is_flag=False,
    flag_value="token",
    help="How clients are known: by tokens, where it stands alone.  [default: none]",
)
@click.option("--insecure", is_flag=True, default=None, help="Listen beyond this machine without --auth.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="Look of the log on standard error.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="LSMQ_CONFIG",
    show_envvar=True,
    help="TOML file with any of the settings; options given here win.",
)
def serve(config: Path | None, **settings: Any) -> None:
    """Run a node, until SIGTERM or Ctrl-C.

    Settings come from --config, then from the environment (LSMQ_PORT=7601), then from the options here.
    docs/configuration.md explains all of them.

    \b
      lsmq serve --data ./data
      lsmq serve --data /var/lib/lsmq --host 0.0.0.0 --auth token
      lsmq serve --data ./data --flush-mode async --flush-interval 50ms
      lsmq serve --data ./data --processes auto
      lsmq serve --data /disk1/lsmq,/disk2/lsmq --shards 4
      lsmq serve --config /etc/lsmq.toml
    """
    with need_node("lsmq serve"):
        node_config = importlib.import_module("lsmq_node.config").NodeConfig
        run = importlib.import_module("lsmq_node.processes").run
    try:
        loaded = node_config.load(config, os.environ, **settings)
    except InvalidRequest as error:
        raise click.UsageError(error.message) from error
    click.get_current_context().exit(run(loaded))
