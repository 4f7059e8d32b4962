"""Fixtures of the tests of what monitoring is told."""

from __future__ import annotations

import pytest

from api.calls import Api
from support.coroutine_tests import pytest_pyfunc_call as pytest_pyfunc_call
from support.node_process import NodeProcess


@pytest.fixture(scope="session")
def api(shared_node: NodeProcess) -> Api:
    """The API of the shared node."""
    return Api(shared_node.url)
