"""A Spark of its own on this machine: a master and workers, in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from support.waiting import eventually

START_TIMEOUT_S = 120.0
_READY = re.compile(r"Starting Spark master at (spark://\S+)")


class SparkStandalone:
    """A master and ``workers`` workers of one core each. Ended when left."""

    def __init__(self, directory: Path, *, workers: int = 2, memory: str = "700m") -> None:
        self._directory = directory
        self._workers = workers
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            log = self._start("master", "org.apache.spark.deploy.master.Master", *options)
            eventually(lambda: _READY.search(log.read_text()) is not None, "the master is there", START_TIMEOUT_S)
            found = _READY.search(log.read_text())
            assert found is not None
            self.url = found[1]
            for number in range(self._workers):
                work = str(self._directory / f"work-{number}")
                options = ("--cores", "1", "--memory", self._memory, "--webui-port", "0", "--work-dir", work)
                name = f"worker-{number}"
                worker = "org.apache.spark.deploy.worker.Worker"
                self._start(name, worker, "--host", "127.0.0.1", *options, self.url)
            eventually(
                lambda: log.read_text().count("Registering worker") >= self._workers,
                "all workers are there",
                START_TIMEOUT_S,
            )
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self, name: str, *command: str) -> Path:
        home = Path(pyspark.__file__).parent
        log = self._directory / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            )
        return log

    def _end(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
