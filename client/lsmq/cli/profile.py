"""``lsmq profile``: clusters by names."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import click

from lsmq.cli._profiles import PROFILE_VARIABLE, Profile, Profiles
from lsmq.cli.options import PROFILE, json_option
from lsmq.cli.render import print_json, print_table
from lsmq.client import normal_url
from lsmq.errors import InvalidRequest

_FILE = click.Path(exists=True, dir_okay=False)


@click.group()
def profile() -> None:
    """Keep how to reach a cluster under a name: --profile NAME, or LSMQ_PROFILE, with any command."""


@profile.command()
@click.argument("name")
@click.option("--url", help="A node, or several separated by commas.")
@click.option("--zookeeper", metavar="HOSTS", help="Or the ZooKeeper that knows the nodes.")
@click.option("--cluster", help="Name of the cluster to find in ZooKeeper.")
@click.option("--token-file", type=_FILE, help="File with the token; the token itself is not kept.")
@click.option("--ca", type=_FILE, help="PEM file with the authorities by which nodes at https:// are believed.")
@click.option("--cert", type=_FILE, help="PEM file with the certificate to show to nodes.")
@click.option("--cert-key", type=_FILE, help="PEM file with its private key.")
@click.option("--replace", is_flag=True, help="Though there is one of that name.")
def add(
    name: str,
    url: str | None,
    zookeeper: str | None,
    cluster: str | None,
    token_file: str | None,
    ca: str | None,
    cert: str | None,
    cert_key: str | None,
    replace: bool,
) -> None:
    """Keep a profile called NAME, in a file of yours alone. No node is asked.

    \b
      lsmq profile add prod --url https://mq-1:7600,https://mq-2:7600 --token-file ~/prod.token
      lsmq status --profile prod
    """
    if (url is None) == (zookeeper is None):
        raise click.UsageError("say where the nodes are: --url, or --zookeeper")
    if cluster is not None and zookeeper is None:
        raise click.UsageError("--cluster is a name in ZooKeeper: give --zookeeper as well")
    files = [None if file is None else str(Path(file).absolute()) for file in (token_file, ca, cert, cert_key)]
    made = Profile(None if url is None else _checked(url), zookeeper, cluster, *files)
    Profiles().save(name, made, replace=replace)
    click.echo(f"profile {name} is kept; --profile {name} or {PROFILE_VARIABLE}={name} uses it", err=True)


def _checked(url: str) -> str:
    try:
        urls = [normal_url(part) for part in url.split(",") if part.strip()]
    except InvalidRequest as error:
        raise click.BadParameter(error.message, param_hint="--url") from error
    if not urls:
        raise click.BadParameter("it names no node", param_hint="--url")
    if any(urlsplit(each).username is not None for each in urls):
        raise click.BadParameter("nothing secret is kept: give a --token-file in place of USER@", param_hint="--url")
    return ",".join(urls)


@profile.command("list")
@json_option
def list_profiles(as_json: bool) -> None:
    """List all profiles, and where they lead. Tokens are not shown, only their files."""
    profiles, chosen = Profiles(), os.environ.get(PROFILE_VARIABLE)
    found = {name: profiles.load(name) for name in profiles.names()}
    if as_json:
        print_json([{"name": name, **each.to_dict(), "chosen": name == chosen} for name, each in found.items()])
        return
    print_table(
        ["profile", "leads to", "token in", "chosen"],
        [
            [name, each.url or f"ZooKeeper {each.zookeeper}", _home(each.token_file), "yes" if name == chosen else None]
            for name, each in found.items()
        ],
    )


def _home(file: str | None) -> str | None:
    home = str(Path.home())
    return f"~{file.removeprefix(home)}" if file is not None and file.startswith(f"{home}/") else file


@profile.command()
@click.argument("name", type=PROFILE)
def remove(name: str) -> None:
    """Forget profile NAME. The files that it names stay."""
    Profiles().remove(name)
    click.echo(f"profile {name} is removed", err=True)
