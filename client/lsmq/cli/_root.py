"""The root of the command tree. It knows the names of all commands and imports one when it is used."""

from __future__ import annotations

import difflib
import importlib
import re
from typing import Any

import click

import lsmq
from lsmq.cli._process import drop_output, is_unread

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# Command, in the order the help shows them, and where it is defined.
_COMMANDS = {
    "serve": "lsmq.cli.serve:serve",
    "cluster": "lsmq.cli.cluster:cluster",
    "topic": "lsmq.cli.topic:topic",
    "queue": "lsmq.cli.queue:queue",
    "produce": "lsmq.cli.produce:produce",
    "consume": "lsmq.cli.consume:consume",
    "work": "lsmq.cli.work:work",
    "request": "lsmq.cli.request:request",
    "message": "lsmq.cli.message:message",
    "delayed": "lsmq.cli.delayed:delayed",
    "schedule": "lsmq.cli.schedule:schedule",
    "group": "lsmq.cli.group:group",
    "dlq": "lsmq.cli.dlq:dlq",
    "transaction": "lsmq.cli.transaction:transaction",
    "token": "lsmq.cli.token:token",
    "role": "lsmq.cli.acl:role",
    "acl": "lsmq.cli.acl:acl",
    "limit": "lsmq.cli.limit:limit",
    "whoami": "lsmq.cli.token:whoami",
    "profile": "lsmq.cli.profile:profile",
    "node": "lsmq.cli.node:node",
    "voter": "lsmq.cli.voter:voter",
    "shard": "lsmq.cli.shard:shard",
    "disk": "lsmq.cli.disk:disk",
    "status": "lsmq.cli.status:status",
    "top": "lsmq.cli.top:top",
    "dump": "lsmq.cli.dump:dump",
    "backup": "lsmq.cli.backup:backup",
    "restore": "lsmq.cli.backup:restore",
    "verify": "lsmq.cli.verify:verify",
    "repair": "lsmq.cli.repair:repair",
    "tls": "lsmq.cli.tls:tls",
    "pipeline": "lsmq.cli.pipeline:pipeline",
    "sizing": "lsmq.cli.sizing:sizing",
    "bench": "lsmq.cli.bench:bench",
    "drill": "lsmq.cli.drill:drill",
    "completion": "lsmq.cli.completion:completion",
}


#: What people call a command who know other brokers, and what it is here.
_OTHER_NAMES = {
    "send": "produce",
    "publish": "produce",
    "put": "produce",
    "receive": "consume",
    "subscribe": "consume",
    "read": "consume",
    "get": "consume",
    "topics": "topic list",
    "queues": "queue list",
    "groups": "group list",
    "nodes": "node list",
    "help": "--help",
    "version": "--version",
    "start": "serve",
    "server": "serve",
    "queue create": "queue declare",
    "queue add": "queue declare",
    "dlq retry": "dlq replay",
    "dlq redrive": "dlq replay",
    "topic add": "topic create",
    "topic new": "topic create",
    "topic update": "topic alter",
    "topic config": "topic alter",
    "group seek": "group reset",
}


#: Of commands that talk to a node, and to be given behind them.
_OPTIONS = frozenset(
    {"--url", "--profile", "--token-file", "--zookeeper", "--cluster", "--ca", "--cert", "--cert-key", "--timeout"}
    | {"--json", "--yes"}
)


def command_meant(error: click.ClickException) -> str | None:
    """Of one that there is not: what it is called here. Of an option before the command: where it belongs."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        if context is None or not isinstance(context.command, click.Group) or error.option_name not in _OPTIONS:
            return None
        return f"{context.command_path} COMMAND {error.option_name}"
    found = re.match(r"No such command '([^']+)'", error.message)
    if context is None or found is None:
        return None
    words = [*context.command_path.split()[1:], found[1].casefold()]
    meant = _OTHER_NAMES.get(" ".join(words))
    if meant is None and len(words) == 1:  # Of commands of a group click says so itself.
        meant = next(iter(difflib.get_close_matches(words[0], _COMMANDS, n=1)), None)
    return None if meant is None else f"lsmq {meant}"


class LazyGroup(click.Group):
    """A group whose commands are imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as ended:
            if not is_unread(ended):
                raise
            drop_output()  # Which is no failure.
            return 0


@click.command(cls=LazyGroup, context_settings=_CONTEXT)
@click.version_option(lsmq.__version__, prog_name="lsmq")
def root() -> None:
    """LSMQ: a durable message queue for a million queues on a small machine.

    \b
    Start a node, and pass a message through it:
      lsmq serve --data ./data &
      lsmq topic create orders --queues 64
      echo 'one pizza' | lsmq produce orders --key 'table 7'
      lsmq consume orders

    Commands that talk to a node take --url, or LSMQ_URL from the environment; several URLs are separated by
    commas. Or --zookeeper (LSMQ_ZOOKEEPER), which finds the nodes; or --profile (LSMQ_PROFILE), which has been given
    a name by lsmq profile. Nodes that ask who you are want a token, in a
    file: --token-file, or LSMQ_TOKEN_FILE (docs/security.md). They exit with 0 on success, 1 when the job
    failed, and 2 on wrong usage.
    """
