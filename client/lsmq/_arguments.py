"""Numbers that callers give: what none can be is refused by its name, before anything is asked of a node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from operator import index
from typing import Final

from lsmq.errors import InvalidRequest

#: No queue has more messages than that.
MAX_OFFSET: Final = (1 << 63) - 1
_SHOWN: Final = 60


def check_times(*, or_inf: bool = False, least: float | None = None, **times: float | None) -> None:
    """Raises ``InvalidRequest`` unless each is a number above 0, or from ``least`` on; None is passed over.

    ``or_inf``: one may be infinite, which is to wait for ever.
    """
    for name, value in times.items():
        if value is not None and not (_is_number(value, or_inf) and (value > 0 if least is None else value >= least)):
            allowed = "above 0" if least is None else f"of {least} or more"
            raise InvalidRequest(f"{name} is {_shown(value)}; it must be a number {allowed}", field=name)


def check_counts(**counts: int) -> None:
    """Raises ``InvalidRequest`` unless each is a number of 1 or more."""
    for name, value in counts.items():
        if not (_is_number(value, False) and value >= 1):
            raise InvalidRequest(f"{name} is {_shown(value)}; it must be a number of 1 or more", field=name)


def check_poll(max_messages: int, timeout_ms: float | None) -> None:
    """Raises ``InvalidRequest`` for a poll that asks for no message, which would never be answered, or whose time never
    comes."""
    if type(max_messages) is not int or max_messages < 1:
        check_counts(max_messages=max_messages)
    if timeout_ms is not None:
        check_times(timeout_ms=timeout_ms, or_inf=True, least=0)


def check_offsets(offsets: Iterable[object], name: str = "offset") -> None:
    """Raises ``InvalidRequest`` for the first that is no whole number from 0 to the last offset that there can be."""
    for offset in offsets:
        if not (type(offset) is int and 0 <= offset <= MAX_OFFSET) and not _is_whole(offset):
            raise InvalidRequest(
                f"{name} is {_shown(offset)}; it must be a whole number from 0 to {MAX_OFFSET}",
                field=name,
                limit=MAX_OFFSET,
            )


def check_queues(queues: Iterable[object]) -> None:
    """Raises ``InvalidRequest`` for the first that is no whole number. Whether a topic has it, the topic knows."""
    for queue in queues:
        if type(queue) is not int and not _is_whole(queue):
            remedy = ", which client.queue() says of a name" if isinstance(queue, str) else ""
            raise InvalidRequest(f"queue is {_shown(queue)}; it must be a whole number{remedy}", field="queue")


def sorted_queues(queues: Iterable[int]) -> Sequence[int]:
    """Each once, in ascending order. Raises ``InvalidRequest`` for what is no collection of whole numbers."""
    if isinstance(queues, range) and queues.step > 0:
        return queues
    if isinstance(queues, str) or not isinstance(queues, Iterable):
        raise InvalidRequest(
            f"queues is {_shown(queues)}; it must be a list of numbers, such as [0, 1]", field="queues"
        )
    found = list(queues)
    check_queues(found)
    return sorted(set(found))


def _is_number(value: object, or_inf: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return isinstance(value, Integral) or math.isfinite(value) or (or_inf and value == math.inf)


def _is_whole(value: object) -> bool:
    """Of one that is no plain ``int``, such as numpy's. True and False are no numbers here."""
    try:
        return not isinstance(value, bool) and 0 <= index(value) <= MAX_OFFSET  # type: ignore[arg-type]
    except TypeError:
        return False


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 200 else "a number of hundreds of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
