"""A small Spark session, one for each process that runs tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lsmq.sync import Client
from support.node_process import NodeProcess
from support.spark_settings import FEW_ROWS
from support.spark_topic import SparkTopic, StreamFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Small enough for two cores that others use as well; a task that fails is tried again, which ``local[2]`` would not.
MASTER = "local[2,4]"
SETTINGS = {
    **FEW_ROWS,
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.default.parallelism": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that knows the data source; that Spark also finds it by itself has a test of its own."""
    from lsmq_pipeline import register, spark_session

    place: Path = tmp_path_factory.mktemp("spark")
    places = {"spark.sql.warehouse.dir": str(place / "warehouse"), "spark.local.dir": str(place / "local")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = spark_session("lsmq-tests", master=MASTER, settings={**SETTINGS, **places})
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture
def client(shared_node: NodeProcess) -> Any:
    with Client(shared_node.url) as client:
        yield client


@pytest.fixture
def topic(spark: SparkSession, client: Client, shared_node: NodeProcess, topic_name: str) -> SparkTopic:
    """A topic of the test's own, which is not made yet."""
    return SparkTopic(spark, client, shared_node.url, topic_name)


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> StreamFiles:
    return StreamFiles(spark, tmp_path)
