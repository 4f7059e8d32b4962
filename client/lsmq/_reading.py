"""Answers of any node, read: for what is asked of a client by its parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from lsmq._paths import quoted
from lsmq._transport import Response
from lsmq.errors import UnexpectedAnswer

if TYPE_CHECKING:
    from lsmq.client import Client

T = TypeVar("T")


async def read(client: Client, method: str, path: str, parse: Callable[[Any], T], value: Any = None) -> T:
    """:meth:`.Client.ask`, and what ``parse`` makes of the answer. Raises ``UnexpectedAnswer``."""
    answer, _ = await client._router.ask_any(method, path, value=value, deadline=client._deadline())
    return answer.parsed(parse)


async def all_pages(
    ask: Callable[[dict[str, str]], Awaitable[Response]], parse: Callable[[Mapping[str, Any]], T]
) -> list[T]:
    """The pages of a list as ``parse`` reads them, asked for one after another; ``ask`` is given the parameters that
    say which."""
    pages: list[T] = []
    after: str | None = None
    while True:
        answer = await ask({} if after is None else {"after": after})
        page, named = answer.parsed(lambda fields: (parse(fields), fields.get("next")))
        pages.append(page)
        after = following_page(named, after)
        if after is None:
            return pages


async def each_of_pages(client: Client, path: str, name: str, parse: Callable[[Any], T]) -> AsyncGenerator[T, None]:
    """The items ``name`` of a list as ``parse`` reads them, of one page after another. ``path`` has parameters."""

    def page(fields: Mapping[str, Any]) -> tuple[list[T], Any]:
        return [parse(each) for each in fields[name]], fields["next"]

    after: str | None = None
    while True:
        items, named = await read(client, "GET", path if after is None else f"{path}&after={quoted(after)}", page)
        for item in items:
            yield item
        after = following_page(named, after)
        if after is None:
            return


def following_page(named: Any, before: str | None) -> str | None:
    """The page that a page names as the next one, where there is one; ``before``: what that page itself was named.

    Raises ``UnexpectedAnswer`` for a list that goes on with the same page for ever, as something between may answer
    that keeps answers and does not look at what was asked for.
    """
    following = None if named is None else str(named)
    if following is not None and following == before:
        raise UnexpectedAnswer(
            f"the page {following!r:.60} of a list names itself as the next one; what stands between keeps answers?"
        )
    return following
