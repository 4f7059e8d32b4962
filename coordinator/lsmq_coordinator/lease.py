"""Until when a node may act on its own authority; see :mod:`~.control` for what makes it true. Pure: times come in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_MAX_PROMISES = 64


@dataclass(slots=True)
class NodeLease:
    """``moment``: nothing was decided against this node up to then that it does not know. Never goes back."""

    moment: float = float("-inf")
    _promises: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_MAX_PROMISES))

    def promise(self, version: int, moment: float) -> None:
        """The control leader vouches for ``moment``, to whoever knows the state of ``version``."""
        self._promises.append((version, moment))

    def claim(self, version: int) -> bool:
        """The state of ``version`` is known. Whether the lease moved."""
        former = self.moment
        while self._promises and self._promises[0][0] <= version:
            self.moment = max(self.moment, self._promises.popleft()[1])
        return self.moment > former
