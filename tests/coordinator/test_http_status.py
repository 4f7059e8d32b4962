"""The table of HTTP statuses: it has no code that is nobody's, and every error has a status."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lsmq_coordinator.errors
import lsmq_node.settings
from lsmq import errors
from lsmq.errors import LsmqError
from lsmq_coordinator.http_status import _STATUSES, status_of

SAID_BY = (errors, lsmq_coordinator.errors, lsmq_node.settings)


def kinds() -> Iterator[type[LsmqError]]:
    for module in SAID_BY:
        yield from (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, LsmqError))


def test_every_code_of_the_table_is_an_error_s() -> None:
    assert _STATUSES.keys() <= {kind.code for kind in kinds()}


def test_every_error_has_a_status_of_an_error() -> None:
    assert all(status_of(kind) == 307 or 400 <= status_of(kind) < 600 for kind in kinds())


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.UnknownTopic, 404),
        (errors.InvalidTopicName, 400),  # as the kind of error that it is
        (errors.NotEnoughReplicas, 503),
        (errors.ReadElsewhere, 307),
        (LsmqError, 500),
    ],
)
def test_an_error_travels_with_its_status(kind: type[LsmqError], status: int) -> None:
    assert status_of(kind) == status_of(kind("why")) == status
