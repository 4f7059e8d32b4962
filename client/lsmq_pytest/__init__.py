"""The pytest plugin: a node for the tests of a session, and a topic for each test. ``docs/testing.md`` says how.

pytest imports it in every project that has LSMQ installed, so it is a package of its own, and imports nothing of
``lsmq`` before a fixture is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lsmq.sync import Client
    from lsmq.testing import NodeProcess

_MOST_LETTERS = 100


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lsmq_topic(**options): options of the topic that lsmq_topic makes")


@pytest.fixture(scope="session")
def lsmq_settings() -> dict[str, Any]:
    """Settings of the session's node, by their names in ``docs/configuration.md``: override it to have others."""
    return {}


@pytest.fixture(scope="session")
def lsmq_server(lsmq_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The session's node, in a process and a directory of its own; for tests that do more than talk to it."""
    from lsmq.testing import NodeProcess

    with NodeProcess(tmp_path_factory.mktemp("lsmq"), **lsmq_settings) as node:
        yield node


@pytest.fixture(scope="session")
def lsmq_url(lsmq_server: NodeProcess) -> str:
    """The URL of the session's node, for ``Client(lsmq_url)``. Override it to use a node that is there."""
    return lsmq_server.url


@pytest.fixture(scope="session")
def _lsmq_shared(lsmq_url: str) -> Iterator[Client]:
    """What topics are made and deleted with, whatever a test does to its own client."""
    from lsmq.sync import Client

    with Client(lsmq_url) as client:
        yield client


@pytest.fixture
def lsmq_client(lsmq_url: str) -> Iterator[Client]:
    """A blocking client of the session's node."""
    from lsmq.sync import Client

    with Client(lsmq_url) as client:
        yield client


@pytest.fixture
def lsmq_topic(request: pytest.FixtureRequest, _lsmq_shared: Client) -> Iterator[str]:
    """The name of a topic of this test alone, which is there, empty, and deleted afterwards.

    ``@pytest.mark.lsmq_topic(queues=64)`` says how ``create_topic`` is to make it.
    """
    from lsmq import runtime
    from lsmq.errors import UnknownTopic

    marker = request.node.get_closest_marker("lsmq_topic")
    name = f"{re.sub('[^A-Za-z0-9]+', '-', request.node.name)[:_MOST_LETTERS]}-{runtime.token_hex(4)}"
    _lsmq_shared.create_topic(name, **({} if marker is None else marker.kwargs))
    yield name
    with suppress(UnknownTopic):
        _lsmq_shared.delete_topic(name)
