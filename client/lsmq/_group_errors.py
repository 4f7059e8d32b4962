"""Errors of who joins a group that is otherwise than he thinks; see :mod:`lsmq.errors`."""

from __future__ import annotations

from lsmq._error import LsmqError


class GroupModeMismatch(LsmqError):
    """There is a group of this name that shares messages in another way. ``details`` carries ``mode``."""

    code = "group_mode_mismatch"


class GroupPatternMismatch(LsmqError):
    """Other members of the group subscribe to the topic by another pattern, or by none: ``pattern`` of ``details``."""

    code = "group_pattern_mismatch"
