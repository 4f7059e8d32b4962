"""``lsmq cluster``: a real cluster of processes on this machine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from lsmq.cli._node import need_node
from lsmq.cli.options import DurationType, json_option, pairs_of
from lsmq.cli.render import print_json, print_table
from lsmq.errors import InvalidRequest, LsmqError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_NO_ZOOKEEPER = "without ZooKeeper: clients get routes from the nodes alone"


def _local_cluster() -> Any:
    with need_node("lsmq cluster"):
        return importlib.import_module("lsmq_lab.local_cluster")


def _open(directory: Path) -> Any:
    return _local_cluster().LocalCluster(directory)


def dir_option(command: Decorated) -> Decorated:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        required=True,
        help="Directory of the cluster: plan, secret, and each node's configuration, log and data.",
    )(command)


@click.group()
def cluster() -> None:
    """Run a real cluster of processes on this machine, and hurt it.

    \b
      lsmq cluster up --dir ./cluster
      lsmq cluster status --dir ./cluster
      lsmq cluster kill n1 --dir ./cluster
      lsmq cluster start n1 --dir ./cluster
      lsmq cluster down --dir ./cluster

    The processes run on when the terminal is closed. `lsmq drill` does such things by itself, and checks that
    nothing was lost.
    """


@cluster.command()
@dir_option
@click.option("--nodes", type=int, help="Node processes.  [default: 3]")
@click.option("--shards", type=int, help="Shards of the cluster.  [default: 3]")
@click.option("--replicas", type=int, help="Replicas of each shard.  [default: 3]")
@click.option("--min-in-sync", type=int, help="Disks a write is on before it is acknowledged.  [default: a majority]")
@click.option("--name", help="Name of the cluster.  [default: lsmq]")
@click.option(
    "--zookeeper",
    metavar="local|none|HOSTS",
    help="Where clients find routes: in a ZooKeeper started with the cluster, nowhere but at the nodes, or at "
    "host:port,host:port.  [default: local where Java and a ZooKeeper are found]",
)
@click.option("--tls", is_flag=True, default=None, help="Encrypt all, with certificates of an authority made for it.")
@click.option("--base-port", type=int, help="First port; each node takes ten.  [default: any that are free]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting of the nodes, such as flush_mode=async or cluster.node_timeout_ms=1000; repeat it.",
)
@click.option("--auth", is_flag=True, help="The nodes ask who their clients are: docs/security.md.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=DurationType(),
    default="60s",
    show_default=True,
    help="How long to wait until all shards serve.",
)
@json_option
def up(directory: Path, settings: tuple[str, ...], auth: bool, timeout_ms: int, as_json: bool, **asked: Any) -> None:
    """Start a cluster, or what is down of the one in --dir, and wait until every shard serves.

    \b
      lsmq cluster up --dir ./cluster --nodes 5 --shards 6 --replicas 3
    """
    local = _local_cluster()
    try:
        if local.ClusterPlan.exists(directory):
            found = _existing(local, directory, settings, auth, asked)
        else:
            found = local.LocalCluster.found(
                directory, _new_plan(local, (*settings, *(("auth=token",) if auth else ())), asked)
            )
    except InvalidRequest as error:
        raise click.UsageError(error.message) from error
    with _bringing_up(len(found.plan.nodes), found.plan.shards) as tell:
        status = found.up(timeout=timeout_ms / 1000, tell=tell)
    if as_json:
        print_json(status.to_dict())
    else:
        _print_status(found, status)
        urls = ",".join(node.url for node in status.nodes if node.state.value != "removed")
        click.echo(f"\nThe cluster serves. For clients:\n  export LSMQ_URL={urls}")
        if found.ca is not None:
            click.echo(f"  export LSMQ_CA={found.ca}")
        if found.client_certificate is not None:
            cert, key = found.client_certificate
            click.echo(f"  export LSMQ_CERT={cert} LSMQ_CERT_KEY={key}  # for ZooKeeper")
        if found.token_file is not None:
            click.echo(f"  export LSMQ_TOKEN_FILE={found.token_file}")


def _existing(local: Any, directory: Path, settings: tuple[str, ...], auth: bool, asked: dict[str, Any]) -> Any:
    found = local.LocalCluster(directory)
    asked = {name: value for name, value in asked.items() if name != "base_port"}
    if auth and found.plan.settings.get("auth") != "token":
        settings = (*settings, "auth=token")
    difference = found.plan.difference(**asked) or ("--set counts for a new cluster only" if settings else None)
    if difference is not None:
        raise InvalidRequest(
            f"there is a cluster in {directory} already: {difference}; leave the option out, or choose another --dir"
        )
    return found


def _new_plan(local: Any, settings: tuple[str, ...], asked: dict[str, Any]) -> Any:
    given = {name: value for name, value in asked.items() if value is not None}
    if "zookeeper" not in given:
        given["zookeeper"] = _default_zookeeper()
    if given["zookeeper"] == "none":
        click.echo(_NO_ZOOKEEPER, err=True)
    return local.found_plan(**given, settings=pairs_of(settings, "--set"))


def _default_zookeeper() -> str:
    module = importlib.import_module("lsmq_lab.local_cluster.zookeeper_server")
    try:
        module.find_zookeeper()
    except LsmqError as error:
        click.echo(f"no ZooKeeper is started: {error.message}", err=True)
        return "none"
    return "local"


@contextmanager
def _bringing_up(nodes: int, shards: int) -> Iterator[Callable[[Any], None]]:
    """Two progress bars on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda status: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn())
    with bars.Progress(*columns, bars.TimeElapsedColumn(), console=Console(stderr=True), transient=True) as shown:
        answering = shown.add_task("nodes that answer", total=nodes)
        serving = shown.add_task("shards that serve", total=shards)

        def tell(status: Any) -> None:
            shown.update(answering, completed=sum(node.state.value == "running" for node in status.nodes))
            shown.update(serving, completed=sum(shard.serving for shard in status.shards))

        yield tell


@cluster.command()
@dir_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Show every node's process and every shard's leader, epoch and in-sync set.

    A node is `running` when it answers, `starting` when it does not (yet), `paused` or `stopped`; `removed` when it
    was taken out of the cluster. Exit code 0 says that the status could be found out, not that it is good.
    """
    found = _open(directory)
    status = found.status()
    if as_json:
        print_json(status.to_dict())
    else:
        _print_status(found, status)


def _add(name: str, done: str, summary: str) -> None:
    """A command that does something with the process of a node, and says that it is ``done``."""

    def command(node: str, directory: Path) -> None:
        click.echo(f"{node} {done} (pid {getattr(_open(directory), name)(node)})")

    cluster.command(name, help=summary)(click.argument("node")(dir_option(command)))


_add("kill", "killed", "End NODE with SIGKILL, as a crash would.")
_add("stop", "stopped", "End NODE with SIGTERM: it hands its shards over and finishes what it has begun.")
_add("start", "started", "Start NODE again, and wait until it answers.")
_add("pause", "paused", "Stop NODE where it stands with SIGSTOP: connections stay open and nothing is answered.")
_add("resume", "resumed", "Let a paused NODE go on.")


@cluster.command()
@dir_option
@click.option(
    "--base-port", type=int, help="First of its ten ports.  [default: behind those of the others, where they are free]"
)
def add(directory: Path, base_port: int | None) -> None:
    """Start one more node. It takes replicas and leaders; it does not vote on who leads."""
    found = _open(directory)
    node = found.add_node(base_port)
    click.echo(f"{node.id} started (pid {found.start(node.id)}) at {node.url}")


@cluster.command()
@click.argument("node")
@dir_option
def forget(node: str, directory: Path) -> None:
    """Drop NODE, which `lsmq node remove` took out of the cluster: end its process and delete its files."""
    found = _open(directory)
    found.plan.node(node)
    status = found.status().node(node)
    if status.state.value != "removed":
        raise InvalidRequest(
            f"{node} belongs to the cluster, as far as is known ({status.state.value}); while the cluster runs:"
            f" lsmq node drain {node} --wait, lsmq node remove {node}, and then this"
        )
    if status.pid is not None:
        found.stop(node)
    found.forget_node(node)
    click.echo(f"{node} is forgotten, and its files are gone")


@cluster.command()
@dir_option
@click.option("--delete", is_flag=True, help="Remove the data and everything else of the cluster as well.")
def down(directory: Path, delete: bool) -> None:
    """Stop all processes of the cluster. Its data stay, and `up` starts it again, unless --delete is given."""
    _open(directory).down(delete=delete)
    click.echo("the cluster is down" + (", and its files are gone" if delete else ""))


def _print_status(found: Any, status: Any) -> None:
    led: dict[str, list[str]] = {}
    for shard in status.shards:
        led.setdefault(shard.leader, []).append(str(shard.id))
    print_table(
        ["node", "pid", "url", "state", "leads shards"],
        [[node.id, node.pid, node.url, node.state.value, ", ".join(led.get(node.id, []))] for node in status.nodes],
    )
    print_table(
        ["shard", "leader", "serves", "epoch", "in sync", "replicas"],
        [
            [
                shard.id,
                shard.leader,
                "yes" if shard.serving else "no",
                shard.epoch,
                ", ".join(shard.in_sync),
                ", ".join(shard.replicas),
            ]
            for shard in status.shards
        ],
    )
    click.echo(f"ZooKeeper: {status.zookeeper or 'none'}")
    click.echo(f"Logs: {found.directory}/*/node.log")
