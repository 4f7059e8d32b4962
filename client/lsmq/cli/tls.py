"""``lsmq tls``: certificates for those who have no authority of their own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from lsmq.cli._node import need_node

_DIRECTORY = click.Path(file_okay=False, path_type=Path)


def _authority() -> Any:
    with need_node("lsmq tls"):
        return importlib.import_module("lsmq_coordinator.authority").Authority


@click.group()
def tls() -> None:
    """Make a certificate authority, and certificates of nodes and clients.

    \b
      lsmq tls init ./tls
      lsmq tls issue ./tls n1 --host n1.example --host 10.0.0.1
      lsmq tls issue ./tls alice
      lsmq serve --data ./data --tls-cert ./tls/n1.crt --tls-key ./tls/n1.key --tls-client-ca ./tls/ca.crt
      lsmq topic list --url https://n1.example:7600 --ca ./tls/ca.crt --cert ./tls/alice.crt --cert-key ./tls/alice.key

    docs/security.md says what to do with them.
    """


@tls.command()
@click.argument("directory", type=_DIRECTORY)
def init(directory: Path) -> None:
    """Make an authority in DIRECTORY. Who has ca.key can be everybody: keep it away from nodes and clients."""
    made = _authority().create(directory)
    click.echo(f"the authority is made; everybody is to trust {made.cert}")


@tls.command()
@click.argument("directory", type=_DIRECTORY)
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Name or address that a node is reached by; repeat it. Left out: those of its certificate that is there, or "
    "a certificate for a client.",
)
@click.option("--days", type=int, default=365, show_default=True, help="How long it is good.")
def issue(directory: Path, name: str, hosts: tuple[str, ...], days: int) -> None:
    """Give NAME a certificate of the authority in DIRECTORY, or another one before the first expires.

    A node that runs takes it by itself within seconds.
    """
    cert, key = _authority()(directory).issue(name, hosts, days=days)
    click.echo(f"certificate: {cert}\nprivate key: {key}")
