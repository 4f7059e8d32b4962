"""``lsmq work``: that there is nothing to do is said by nodes, and by nobody else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from click.testing import CliRunner, Result

from api.calls import Api
from lsmq.cli import root
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually


def run(node: NodeProcess, *arguments: str) -> Result:
    return CliRunner().invoke(root, [*arguments, "--url", node.url])


def test_who_reaches_nobody_does_not_learn_that_there_is_no_work(
    make_node: Callable[..., NodeProcess], topic_name: str
) -> None:
    node = make_node().start()
    node.kill9()
    result = run(node, "work", topic_name, "--group", "g", "--wait", "100ms", "--timeout", "1s")
    assert result.exit_code == 1, result.output


def test_nor_does_who_waits_for_more_as_the_node_dies(make_node: Callable[..., NodeProcess], topic_name: str) -> None:
    node = make_node().start()
    assert run(node, "topic", "create", topic_name).exit_code == 0
    arguments = ("work", topic_name, "--group", "g", "--wait", "2s", "--timeout", "4s")
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(run, node, *arguments)
        eventually(lambda: Api(node.url).get("/v1/status").json()["waiters"] == 1, "a pop is held")
        node.kill9()
        assert working.result(PATIENCE_S).exit_code == 1


def test_who_waits_for_nothing_gets_what_there_is(shared_node: NodeProcess, topic_name: str) -> None:
    assert run(shared_node, "topic", "create", topic_name).exit_code == 0
    Api(shared_node.url).send(topic_name, {"queue": 0, "body": "x"})
    assert run(shared_node, "work", topic_name, "--group", topic_name, "--wait", "0s").stdout == "x\n"
