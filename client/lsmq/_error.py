"""The root of the tree of errors, see :mod:`lsmq.errors`."""

from __future__ import annotations

from typing import Any, ClassVar


class LsmqError(Exception):
    """Base of all errors of LSMQ."""

    code: ClassVar[str] = "internal"
    retriable: bool = False
    refresh_route: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def to_dict(self) -> dict[str, Any]:
        """The body of an error answer, without the outer ``error`` key."""
        return {
            "code": self.code,
            "message": self.message,
            "retriable": self.retriable,
            "refresh_route": self.refresh_route,
            **self.details,
        }
