"""Spark reads from a node that speaks TLS, and writes to it: what it believes and shows is in the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lsmq.sync import Client, Consumer, Producer
from lsmq_coordinator.authority import Authority
from support.node_process import NodeProcess
from support.spark_settings import FEW_ROWS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MESSAGES = 50
DRIVER = """
import json, sys
from lsmq_pipeline import register, spark_session
url, settings = sys.argv[1], json.loads(sys.argv[2])
spark = spark_session("tls", master="local[1]", settings=settings)
spark.sparkContext.setLogLevel("OFF")
register(spark)
found = spark.read.format("lsmq").options(url=url, topic="from", startingOffsets="earliest").load()
found.select("key", "body").write.format("lsmq").options(url=url, topic="to").mode("append").save()
spark.stop()
"""


def test_spark_takes_authority_and_certificate_from_the_environment(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    authority = Authority.create(tmp_path / "tls")
    cert, key = authority.issue("node", ("127.0.0.1",))
    node = make_node(tls_cert=cert, tls_key=key, tls_client_ca=authority.cert).start()
    shown = authority.issue("spark")
    settings = {**FEW_ROWS, "spark.ui.enabled": False, "spark.driver.host": "127.0.0.1"}
    settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.local.dir": str(tmp_path / "local")}
    files = {"LSMQ_CA": authority.cert, "LSMQ_CERT": shown[0], "LSMQ_CERT_KEY": shown[1]}
    with Client(node.url, ca=authority.cert, cert=shown[0], cert_key=shown[1]) as client:
        for topic in ("from", "to"):
            client.create_topic(topic, queues=2)
        with Producer(client, "from") as producer:
            for number in range(MESSAGES):
                producer.send(f"{number}", queue=number % 2)
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, node.url, json.dumps(settings)],
            env={**os.environ, **{name: str(file) for name, file in files.items()}},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4_000:]
        found: set[str] = set()
        with Consumer(client, "to", start="earliest") as consumer:
            while len(found) < MESSAGES:
                found |= {message.text() for message in consumer.poll(timeout_ms=20_000)}
    assert found == {f"{number}" for number in range(MESSAGES)}
