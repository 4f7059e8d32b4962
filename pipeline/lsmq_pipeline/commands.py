"""The commands behind ``lsmq pipeline``. Whatever needs Spark is imported when a command runs."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from lsmq import errors
from lsmq.cli.options import TIME, TOPIC, json_option, url_option
from lsmq.cli.render import print_fields, print_json, print_table
from lsmq_pipeline import errors as own_errors
from lsmq_pipeline.errors import JobFailed
from lsmq_pipeline.jobs.report import JobProgressBar, JobReport, Quiet, lines_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK_OPTIONS = (
    click.option(
        "--conf",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of Spark; may be given several times.",
    ),
    click.option("--memory", default="1g", show_default=True, help="Heap of a driver on this machine."),
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        envvar=["SPARK_MASTER", "SPARK_REMOTE"],
        help="Where Spark runs: local[*], spark://host:7077, yarn, k8s://..., or sc://host:15002 (Spark Connect).",
    ),
)
#: The last line of a traceback that ends with an error of ours.
_OURS = re.compile(r"^lsmq(?:_pipeline)?\.\w*errors?\.(\w+): (.+)$", re.MULTILINE)
_since = click.option("--since", type=TIME, help="Messages stored at or after that time.")
_until = click.option("--until", type=TIME, help="Messages stored before that time.")
_plot = click.option("--plot", type=click.Path(dir_okay=False), help="Draw it into a PNG or SVG file as well.")


def _spark_job(*, connected: bool = True) -> Callable[[Callable[..., JobReport]], Callable[..., None]]:
    """Makes a command's function of one that runs a job: it is given ``spark``, ``progress`` and, if ``connected``,
    ``connection``; its report is shown."""

    def decorate(run: Callable[..., JobReport]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(
            master: str,
            memory: str,
            settings: tuple[str, ...],
            as_json: bool,
            url: str = "",
            deadline_ms: int = 0,
            **given: Any,
        ) -> None:
            if connected:
                given["connection"] = connection_of(url, deadline_ms)
            with in_few_words(), session(run.__name__, master, memory, settings) as spark:
                report = run(spark=spark, progress=JobProgressBar(spark), **given)
            show(report, as_json)

        options = (json_option, *([url_option] if connected else []), *_SPARK_OPTIONS)
        return functools.reduce(lambda function, option: option(function), options, command)

    return decorate


def connection_of(url: str, deadline_ms: int) -> dict[str, Any]:
    """The options of the data source that the command line's make."""
    meta = click.get_current_context().meta
    found: dict[str, Any] = {"url": url or None, "deadlineMs": deadline_ms}
    if meta.get("lsmq.zookeeper"):
        found |= {"zookeeper": meta["lsmq.zookeeper"], "cluster": meta.get("lsmq.cluster")}
    if meta.get("lsmq.token_file"):
        found["tokenFile"] = meta["lsmq.token_file"]
    return found


@contextmanager
def session(name: str, master: str, memory: str, settings: tuple[str, ...]) -> Iterator[SparkSession]:
    """A Spark session for one command."""
    from lsmq_pipeline import spark_session

    remote = master.startswith("sc://")
    given = {} if remote else {"spark.driver.memory": memory, "spark.ui.enabled": "false"}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--conf takes NAME=VALUE, not {setting!r}")
        given[key.strip()] = value.strip()
    spark = spark_session(f"lsmq {name}", master=master, settings=given)
    if not remote:
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def in_few_words() -> Iterator[None]:
    """Raises what fails within Spark as the error of ours that its traceback ends with, or as ``JobFailed``."""
    try:
        yield
    except errors.LsmqError:
        raise
    except Exception as error:
        from pyspark.errors import PySparkException

        java: Any = getattr(error, "java_exception", None)
        if java is None and not isinstance(error, PySparkException):
            raise
        if ours := _OURS.findall(str(error)):
            name, message = ours[-1]
            kind: type[errors.LsmqError] = getattr(own_errors, name, getattr(errors, name, errors.LsmqError))
            raise kind(message) from error
        text = str(error) if isinstance(error, PySparkException) else str(java.toString())
        raise JobFailed(f"Spark says: {text.strip().splitlines()[0]}") from error


def show(report: JobReport, as_json: bool) -> None:
    """Print a report; exit with 1 when it tells of problems."""
    if as_json:
        print_json(report.to_dict())
    else:
        print_fields(list(lines_of(report)))
        if report.sheet is not None and report.sheet.rows:
            print_table(report.sheet.columns, report.sheet.rows)
        for problem in report.problems:
            click.echo(f"problem: {problem}", err=True)
    click.get_current_context().exit(1 if report.problems else 0)


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


@click.command()
@click.argument("topics", nargs=-1, required=True, type=TOPIC)
@click.option("--to", "path", required=True, help="Where the archive is or is to be: a directory, hdfs://, s3a://.")
@click.option("--messages-per-run", type=click.IntRange(1), default=10_000_000, show_default=True)
@click.option("--allow-data-loss", is_flag=True, help="Go on when retention took messages before they were archived.")
@_spark_job()
def archive(allow_data_loss: bool, **given: Any) -> JobReport:
    """Archive TOPICS to Parquet, from where the last run ended.

    \b
      lsmq pipeline archive flights orders --to ./archive

    Killed on the way, start it again: every message is in the archive exactly once.
    """
    from lsmq_pipeline.jobs.archive import archive as job

    return job(fail_on_data_loss=not allow_data_loss, **given)


@click.command()
@click.argument("path")
@click.argument("source", type=TOPIC)
@click.argument("target", type=TOPIC)
@click.option(
    "--name", help="This replay's name: given again, it repeats only what was left undone.  [default: a new one]"
)
@_since
@_until
@click.option(
    "--expired-by",
    type=TIME,
    help="Messages expire when they would have, and those that had by then are left out: a time of the last day.  "
    "[default: each lives as long again as it had to]",
)
@click.option("--create", is_flag=True, help="Make TARGET if it is not there.")
@_spark_job()
def replay(
    name: str | None, since: datetime | None, until: datetime | None, expired_by: datetime | None, **given: Any
) -> JobReport:
    """Write what the archive at PATH has of topic SOURCE to topic TARGET, each queue in its order."""
    from lsmq_pipeline.jobs.replay import replay as job

    given |= {"since_ms": _ms(since), "until_ms": _ms(until), "expired_by_ms": _ms(expired_by)}
    return job(name=name or secrets.token_hex(4), **given)


@click.command()
@click.argument("topic", type=TOPIC)
@_spark_job()
def audit(topic: str, **given: Any) -> JobReport:
    """Read all of TOPIC, on every replica that can be read, and prove that it is whole.

    Exits with 0 only when offsets are dense, nothing is there twice, and the replicas hold the same.
    """
    from lsmq_pipeline.jobs.audit import audit as job

    return job(topic_name=topic, **given)


@click.command()
@click.argument("topics", nargs=-1, type=TOPIC)
@_plot
@url_option
@json_option
def lagreport(topics: tuple[str, ...], plot: str | None, url: str, deadline_ms: int, as_json: bool) -> None:
    """Show how far every group is behind in TOPICS (all, when none are named)."""
    from lsmq_pipeline.jobs.lagreport import lagreport as job

    show(job(connection_of(url, deadline_ms), topics, plot=plot, progress=Quiet()), as_json)


@click.command()
@click.argument("topics", nargs=-1, type=TOPIC)
@click.option("--archive", help="Read this archive and not the cluster.")
@click.option(
    "--tenant",
    "tenant_property",
    default="tenant",
    show_default=True,
    help="The property that names a message's tenant.",
)
@click.option(
    "--sent",
    "sent_property",
    default="sent_ms",
    show_default=True,
    help="The property with the producer's clock.",
)
@_since
@_until
@_plot
@_spark_job()
def usage(since: datetime | None, until: datetime | None, **given: Any) -> JobReport:
    """Show counts, bytes and latency of TOPICS by tenant and hour."""
    from lsmq_pipeline.jobs.usage import usage as job

    return job(since_ms=_ms(since), until_ms=_ms(until), **given)


@click.command()
@click.argument("path")
@click.argument("target")
@click.option("--by", type=click.Choice(["id", "key", "body"]), default="body", show_default=True)
@_spark_job(connected=False)
def dedupe(**given: Any) -> JobReport:
    """Write the archive at PATH to TARGET without repeats: the first of messages that are alike stays.

    Alike are messages of the same id, of the same key, or of the same key and body.
    """
    from lsmq_pipeline.jobs.thinning import dedupe as job

    return job(**given)


@click.command()
@click.argument("path")
@click.argument("target")
@_spark_job(connected=False)
def compact(**given: Any) -> JobReport:
    """Write the archive at PATH to TARGET with the last message of each key, and all that have no key."""
    from lsmq_pipeline.jobs.thinning import compact as job

    return job(**given)


COMMANDS: dict[str, click.Command] = {
    command.name or "": command for command in (archive, replay, audit, lagreport, usage, dedupe, compact)
}
