"""What tests of clusters share."""

from __future__ import annotations

from support.coroutine_tests import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
