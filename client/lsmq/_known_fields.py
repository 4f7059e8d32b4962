"""Objects of answers as dataclasses: a node of a later release may say more of them than is known here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def of_known(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass of the fields that it has; others are passed over."""
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values})
