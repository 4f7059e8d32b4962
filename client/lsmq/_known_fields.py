"""Objects of answers as dataclasses: a node of a later release may say more of them than is known here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def of_known(kind: Callable[..., T], values: Mapping[str, Any]) -> T:
    """A dataclass of the fields that it has; others are passed over."""
    known = fields(kind)  # type: ignore[arg-type]  # It is one.
    return kind(**{each.name: values[each.name] for each in known if each.name in values})
