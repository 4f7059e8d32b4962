"""Fixtures of the HTTP API's tests."""

from __future__ import annotations

import pytest

from support.node_process import NodeProcess

from .calls import Api


@pytest.fixture(scope="session")
def api(shared_node: NodeProcess) -> Api:
    """The API of the shared node."""
    return Api(shared_node.url)
