"""A limit on the bytes in flight, so that many large requests cannot add up to more memory than there is."""

from __future__ import annotations

from types import TracebackType

from lsmq.errors import Unavailable


class Hold:
    """Bytes one request has reserved. A context manager that gives them back at its end."""

    __slots__ = ("_budget", "held_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def resize(self, size_bytes: int) -> None:
        """Hold exactly ``size_bytes`` from now on. Raises :class:`Unavailable` when there is no room."""
        self._budget.change(size_bytes - self.held_bytes)
        self.held_bytes = size_bytes

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resize(0)


class ByteBudget:
    """Reservations up to ``limit_bytes`` together. Used on the loop thread only.

    A request that alone is larger than the limit is never possible: the configuration sees to that.
    """

    __slots__ = ("limit_bytes", "peak_bytes", "refused", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.refused = 0

    def hold(self) -> Hold:
        """A reservation of no bytes yet."""
        return Hold(self)

    def change(self, delta_bytes: int) -> None:
        """Reserve more or give back. Raises :class:`Unavailable` when the limit would be passed."""
        used = self.used_bytes + delta_bytes
        if delta_bytes > 0 and used > self.limit_bytes:
            self.refused += 1
            raise Unavailable(
                f"requests in flight hold {self.used_bytes} of {self.limit_bytes} bytes and this one needs "
                f"{delta_bytes} more; try again shortly, or raise max_inflight_bytes",
                limit=self.limit_bytes,
            )
        self.used_bytes = used
        if used > self.peak_bytes:
            self.peak_bytes = used
