"""A cluster of containers, for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from .stack import CannotRunDocker, Stack, docker_daemon, make_local_images


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A project of its own with its images built, not up: each test brings it up and removes all of it."""
    with ExitStack() as scope:
        try:
            scope.enter_context(docker_daemon())
        except CannotRunDocker as reason:
            pytest.skip(f"containers cannot be run here: {reason}")
        made = Stack(local_images=make_local_images())
        made.compose("build", "n1")
        yield made
