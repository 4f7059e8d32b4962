"""What programs that use LSMQ are tested with: nodes in processes and threads, and fixtures of pytest."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsmq import Client as AsyncClient
from lsmq import testing
from lsmq.sync import Client, Consumer, Producer
from lsmq.testing import NodeNotStarted, NodeProcess, NodeThread
from support.pytest_plugin import plugin_options
from support.python_process import forked_programs
from support.waiting import PATIENCE_S, eventually

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
KINDS = [NodeProcess, NodeThread]


def read(url: str, topic: str) -> list[str]:
    with Client(url) as client, Consumer(client, topic, start="earliest") as consumer:
        return [message.text() for message in consumer.poll(100)]


def send(url: str, topic: str, *texts: str) -> None:
    with Client(url) as client:
        client.create_topic(topic)
        with Producer(client, topic) as producer:
            for text in texts:
                producer.send_and_wait(text)


@pytest.fixture(autouse=True, scope="module")
def nodes_start_at_once() -> Iterator[None]:
    """All but those of programs."""
    with forked_programs(testing):
        yield


@pytest.mark.part(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_node_keeps_its_address_and_its_messages_when_it_is_started_again(
    kind: type[NodeProcess | NodeThread], tmp_path: Path
) -> None:
    with kind(tmp_path / "n") as node:
        url = node.url
        send(url, "t", "one", "two")
        node.stop()
        node.stop()
        assert node.start().url == url
        assert node.start().url == url, "it runs already"
        assert read(url, "t") == ["one", "two"]
    assert (tmp_path / "n" / "data").is_dir(), "a directory that was given stays"


@pytest.mark.part(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_node_without_a_directory_leaves_nothing(kind: type[NodeProcess | NodeThread]) -> None:
    node = kind()
    with node:
        assert (node.directory / "data").is_dir()
    assert not node.directory.exists()


@pytest.mark.part(2)
@pytest.mark.parametrize("kind", KINDS)
def test_nodes_run_beside_each_other_and_beside_an_event_loop(kind: type[NodeProcess | NodeThread]) -> None:
    async def main() -> None:
        async with kind() as one, kind() as other, AsyncClient(one.url) as client:
            await client.create_topic("t")
            async with AsyncClient(other.url) as elsewhere:
                assert await elsewhere.topics() == []

    asyncio.run(main())


@pytest.mark.part(2)
def test_what_was_acknowledged_survives_kill() -> None:
    with NodeProcess() as node:
        send(node.url, "t", "one")
        node.kill()
        assert node.pid is None
        node.start()
        assert read(node.url, "t") == ["one"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_that_does_not_exist_is_named(kind: type[NodeProcess | NodeThread]) -> None:
    with pytest.raises(Exception, match="colour"), kind(colour="green"):
        pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.part(3)
def test_a_node_that_cannot_start_says_why(kind: type[NodeProcess | NodeThread]) -> None:
    with NodeProcess() as node, pytest.raises(NodeNotStarted, match=r"(?i)in use"):
        kind(port=int(node.url.rpartition(":")[2])).start()


def test_without_the_node_it_is_said_what_to_install() -> None:
    program = (
        "import sys; sys.modules['lsmq_node'] = None\n"
        "from lsmq.testing import *\n"
        "try: NodeThread().start()\n"
        "except NodeNotInstalled as error: print(error.message)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert 'pip install "lsmq[node]"' in ran.stdout, ran.stderr


@pytest.mark.part(2)
def test_a_node_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom lsmq.testing import *\n"
        "node = NodeProcess(sys.argv[1]).start(); print(node.pid, flush=True)\ninput()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "n"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: not is_there(pid), "the node has ended")
    assert "stopped" in (tmp_path / "n" / "node.log").read_text(), "it was not killed, but stopped"


def is_there(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.part(3)
def test_the_fixtures_give_a_node_a_session_and_a_topic_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        import pytest
        from lsmq import Client
        from lsmq.sync import Consumer, Producer

        seen = []

        @pytest.mark.parametrize("time", [1, 2])
        def test_plain(lsmq_client, lsmq_topic, time):
            with Producer(lsmq_client, lsmq_topic) as producer:
                producer.send_and_wait("hello")
            with Consumer(lsmq_client, lsmq_topic, start="earliest") as consumer:
                assert [message.text() for message in consumer.poll(10)] == ["hello"]
            seen.append((lsmq_client.urls, lsmq_topic))
            lsmq_client.close()

        @pytest.mark.lsmq_topic(queues=64)
        def test_asyncio(lsmq_url, lsmq_topic):
            async def main():
                async with Client(lsmq_url) as client:
                    assert (await client.topic(lsmq_topic)).queues == 64
            asyncio.run(main())

        def test_deletes(lsmq_client, lsmq_topic):
            lsmq_client.delete_topic(lsmq_topic)

        def test_last(lsmq_client):
            assert lsmq_client.topics() == []
            (urls, one), (same, other) = seen
            assert urls == same and one != other

        def test_kills(lsmq_server):
            lsmq_server.kill()
            lsmq_server.start()
        """
    )
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def lsmq_settings():
            return {"max_message_bytes": 1000}
        """
    )
    result = in_process_of_its_own(pytester, *plugin_options())
    result.assert_outcomes(passed=6)


def test_the_plugin_costs_nothing_where_it_is_not_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_imports():
            assert "lsmq_pytest" in sys.modules
            assert [name for name in sys.modules if name.split(".")[0] in ("lsmq", "lsmq_node", "aiohttp")] == []
        """
    )
    in_process_of_its_own(pytester, *plugin_options()).assert_outcomes(passed=1)


def in_process_of_its_own(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-W", "error", "--strict-markers", *options, timeout=PATIENCE_S)
