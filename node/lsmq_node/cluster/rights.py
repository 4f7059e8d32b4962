"""Where it is kept who may do what: in the control state of a cluster, in the first shard of a node of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from lsmq.errors import DocumentsFull, InvalidRequest, TooManyRights
from lsmq_coordinator.control import ControlClient
from lsmq_coordinator.state import MAX_RIGHTS_BYTES
from lsmq_node.broker.loop_work import to_its_end
from lsmq_node.storage import ShardStore

#: Keys of the documents of a node of its own: this and what they are there.
RIGHTS = "rights/"
_TIMEOUT_S = 5.0


class LocalRights:
    """Documents of a shard. Loop thread only."""

    voucher_keys: Sequence[bytes] = ()

    def __init__(self, store: ShardStore) -> None:
        self._store = store
        self._version = 1
        self._known = {key.removeprefix(RIGHTS): body for key, body in store.documents(RIGHTS)}
        self._callbacks: list[Callable[[], None]] = []
        self._changing = asyncio.Lock()

    def known(self) -> tuple[int, Mapping[str, bytes]]:
        return self._version, self._known

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def newest(self) -> None:
        """There is nothing newer elsewhere."""

    @to_its_end  # What is stored has to be known.
    async def change(self, changes: Mapping[str, bytes | None], version: int) -> bool:
        async with self._changing:
            if version != self._version:
                return False
            changed = {**self._known, **changes}
            known = {key: body for key, body in changed.items() if body is not None}
            size = sum(len(key) + len(body) for key, body in known.items())
            if size > MAX_RIGHTS_BYTES:
                raise TooManyRights(
                    f"tokens, roles and grants would take {size} bytes, of {MAX_RIGHTS_BYTES}; revoke what nobody "
                    "needs",
                    limit=MAX_RIGHTS_BYTES,
                )

            def put() -> None:
                self._store.wait(self._store.put_documents({RIGHTS + key: body for key, body in changes.items()}))

            try:
                await asyncio.to_thread(put)
            except DocumentsFull as error:
                raise TooManyRights(error.message, **error.details) from error
            self._known, self._version = known, self._version + 1
            for callback in self._callbacks:
                callback()
            return True


class ClusterRights:
    """A part of the control state. Loop thread only."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self.voucher_keys: Sequence[bytes] = ()  # set by whoever has the secret, before anything is asked

    def known(self) -> tuple[int, Mapping[str, bytes]]:
        state = self._control.state
        return state.rights_version, state.rights

    def on_change(self, callback: Callable[[], None]) -> None:
        self._control.on_change(lambda _: callback())

    async def newest(self) -> None:
        await self._control.catch_up()

    async def change(self, changes: Mapping[str, bytes | None], version: int) -> bool:
        command = {"op": "change_rights", "changes": dict(changes), "expected_version": version}
        result = await self._control.submit(command, _TIMEOUT_S)
        if result["ok"]:
            return True
        if result["code"] == "stale":
            await self._control.catch_up()
            return False
        kind = TooManyRights if result["code"] == "limit_reached" else InvalidRequest
        raise kind(result["message"], reason=result["code"])
