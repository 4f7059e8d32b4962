"""``lsmq pipeline``: jobs on Spark. They come with ``lsmq[spark]``, and are imported when asked for."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping

import click

from lsmq.errors import LsmqError


class PipelineNotInstalled(LsmqError):
    """The command needs ``lsmq[spark]``."""

    code = "pipeline_not_installed"


def _commands() -> Mapping[str, click.Command]:
    for needed in ("lsmq_pipeline", "numpy", "pyarrow", "pyspark"):
        if not _is_installed(needed):
            raise PipelineNotInstalled(
                f'lsmq pipeline needs Spark, and {needed} is not installed; run: pip install "lsmq[spark]"',
                missing=needed,
            )
    module = importlib.import_module("lsmq_pipeline.commands")
    commands: Mapping[str, click.Command] = module.COMMANDS
    return commands


def _is_installed(package: str) -> bool:
    """Looked for and not imported: a help text need not wait for Spark."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


class _Jobs(click.Group):
    """A group whose commands are another package's."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        try:
            return list(_commands())
        except PipelineNotInstalled:
            return []

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        try:
            _commands()
        except PipelineNotInstalled as error:
            with formatter.section("Jobs"):
                formatter.write_text(f"{error.message}; then they are listed here")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _commands().get(cmd_name)


@click.command(cls=_Jobs)
def pipeline() -> None:
    """Run a job on Spark: archive topics, replay and thin archives, audit, report.

    \b
      lsmq pipeline archive flights --to ./archive
      lsmq pipeline audit flights
      lsmq pipeline usage flights --plot usage.png

    Spark runs on this machine unless --master names a cluster.
    """
