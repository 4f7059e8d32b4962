"""A Spark Connect server on this machine, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from support.spark_settings import FEW_ROWS, JAVA_OF_FEW_ROWS
from support.waiting import eventually

START_TIMEOUT_S = 120.0
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_READY = re.compile(r"Spark Connect server started at: \S*?:(\d+)")
_LOG = """
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""


class SparkConnectServer:
    """A server with two cores, which knows nothing of LSMQ but that it is installed. Ended when left."""

    def __init__(self, directory: Path, *, memory: str = "900m") -> None:
        self._directory = directory
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / "server.log"
        logging = self._directory / "log4j2.properties"
        logging.write_text(_LOG)
        home = Path(pyspark.__file__).parent
        settings = {
            **FEW_ROWS,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.extraJavaOptions": f"{JAVA_OF_FEW_ROWS} -Dlog4j2.configurationFile={logging}",
            "spark.local.dir": str(self._directory / "local"),
            "spark.python.daemon.module": "lsmq_pipeline.daemon",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
            "spark.ui.enabled": "false",
        }
        words = [str(home / "bin" / "spark-submit"), "--class", _CLASS, "--master", "local[2,4]"]
        words += ["--driver-memory", self._memory]
        for name, value in settings.items():
            words += ["--conf", f"{name}={value}"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*words, "spark-internal"],
                cwd=self._directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            eventually(lambda: _READY.search(log.read_text()) is not None, "the server is there", START_TIMEOUT_S)
        except BaseException:
            self._end()
            raise
        found = _READY.search(log.read_text())
        assert found is not None
        self.url = f"sc://127.0.0.1:{found[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
