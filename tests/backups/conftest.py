"""Fixtures of the tests of backups."""

from __future__ import annotations

from client.conftest import cluster
from support.coroutine_tests import pytest_pyfunc_call

__all__ = ["cluster", "pytest_pyfunc_call"]
