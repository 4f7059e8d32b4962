"""Committing what a consumer was handed, or has handled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from lsmq._fetch_loop import FetchLoop
from lsmq._membership import Membership
from lsmq._reader import Reader
from lsmq.errors import InvalidRequest
from lsmq.topics import Topic

HeldQueues = Mapping[str, Mapping[int, int]]


class Commits:
    """Of one consumer, one at a time. ``held`` says by topic and queue what not to commit beyond."""

    def __init__(
        self, reader: Reader, group: str | None, membership: Membership | None, held: Callable[[], HeldQueues]
    ) -> None:
        self._reader = reader
        self._group = group
        self._membership = membership
        self._held = held
        self._turn = asyncio.Lock()

    @property
    def are_kept(self) -> bool:
        """Whether there is a group to commit for."""
        if self._membership is not None:
            return self._membership.offsets_group is not None
        return self._group is not None

    async def put(self, topic: Topic, offsets: Mapping[int, int], *, reset: bool) -> None:
        async with self._turn:
            await self._put(topic, offsets, reset=reset)
            self._reader.loops[topic.name].positions.committed(offsets)

    async def _put(self, topic: Topic, offsets: Mapping[int, int], *, reset: bool) -> None:
        if self._group is None:
            raise InvalidRequest("only a consumer with a group can commit; give it group='...'")
        if self._membership is not None:
            await self._membership.commit(topic, offsets, reset=reset)
        else:
            await self._reader.client._commit_offsets(self._group, topic, offsets, reset=reset)

    async def put_changed(self) -> None:
        """What has moved since the last commit, of all topics."""
        if self._group is None:
            raise InvalidRequest("only a consumer with a group can commit; give it group='...'")
        for loop in list(self._reader.loops.values()):
            await self.put_changed_of(loop)

    async def put_changed_of(self, loop: FetchLoop) -> None:
        positions = loop.positions
        async with self._turn:
            held = self._held().get(loop.topic.name, {})
            changed = {queue: min(offset, held.get(queue, offset)) for queue, offset in positions.changed.items()}
            rewound = positions.rewound & changed.keys()
            positions.rewound -= rewound
            try:
                for reset in (False, True):
                    part = {queue: changed[queue] for queue in changed if (queue in rewound) is reset}
                    if part:
                        await self._put(loop.topic, part, reset=reset)
            except BaseException:
                positions.rewound |= rewound
                raise
            positions.committed(changed)
