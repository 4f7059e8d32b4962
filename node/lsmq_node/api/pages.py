"""Lists in pages: ``limit`` of them after the name ``after``, and the name to go on after as ``next``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from .routing import Call, Parameter
from .schema import integer, text
from .schemas import LISTED, MAX_LISTED

LIMIT = Parameter("limit", integer(1, MAX_LISTED, default=LISTED), "At most so many.")
PAGE = (
    LIMIT,
    Parameter("after", text(default=""), "Those after this name: `next` of the page before."),
)

Item = TypeVar("Item")


def page(
    call: Call,
    items: Iterable[Item],
    name: Callable[[Item], str] = str,
    shows: Callable[[Item], bool] = lambda item: True,
    most: int = MAX_LISTED,
) -> tuple[list[Item], Any]:
    """The items of the page that is asked for, in order of their names, and what ``next`` is.

    Only those that it ``shows``; of others than the page's that is not asked. ``most``: so many on a page at most.
    """
    limit, after = min(call.query["limit"], most), call.query["after"]
    later = sorted((item for item in items if name(item) > after), key=name)
    found = list(islice(filter(shows, later), limit + 1))
    return found[:limit], name(found[limit - 1]) if len(found) > limit else None


def names_page(
    call: Call, names: Callable[[str, int], list[str]], shows: Callable[[str], bool]
) -> tuple[list[str], str | None]:
    """As :func:`page`, of very many that are kept in order: ``names`` gives so many of them after one."""
    limit, after = call.query["limit"], call.query["after"]
    found: list[str] = []
    while len(found) <= limit and (some := names(after, limit + 1)):
        found += islice(filter(shows, some), limit + 1 - len(found))
        after = some[-1]
    return found[:limit], found[limit - 1] if len(found) > limit else None
