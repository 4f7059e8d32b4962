"""The command ``lsmq``.

:func:`main` maps outcomes to exit codes: 0 success, 1 a failure of the job, 2 wrong usage; ``lsmq acl test`` exits
with 3 where the answer is no. Errors go to standard error as ``error: code: message``. Subcommands are imported when
they are called for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from lsmq.cli import _process
from lsmq.cli._root import command_meant, root
from lsmq.errors import ConnectionFailed, LsmqError, Unauthenticated

__all__ = ["main", "root"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    if arguments is None:
        _process.prepare()
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    code = 0
    try:
        returned = root.main(arguments, prog_name="lsmq", standalone_mode=False)
        code = returned if isinstance(returned, int) else 0
        sys.stdout.flush()
        return code
    except click.ClickException as error:
        error.show()
        if (meant := command_meant(error)) is not None:
            click.echo(f"Did you mean '{meant}'?", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        denied = isinstance(error, click.Abort) and not isinstance(error.__context__, KeyboardInterrupt)
        click.echo("not confirmed, nothing was done; --yes answers beforehand" if denied else "interrupted", err=True)
        return 1
    except LsmqError as error:
        click.echo(f"error: {error.code}: {error.message}", err=True)
        if isinstance(error, ConnectionFailed) and "tls" not in error.details:
            click.echo(
                "is a node running there? --url or LSMQ_URL says where; lsmq serve starts one, and of a cluster that "
                "answers in part lsmq status says who is away",
                err=True,
            )
        if isinstance(error, Unauthenticated):
            click.echo("give --token-file, or LSMQ_TOKEN_FILE; a node's first token is DATA/admin.token", err=True)
        return 1
    except BrokenPipeError:
        _process.drop_output()
        return code
    except OSError as error:
        click.echo(f"error: system: {error}", err=True)
        return 1
