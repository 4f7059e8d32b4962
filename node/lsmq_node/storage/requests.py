"""What callers ask of a queue store, and how they learn what became of it.

A caller makes a request by itself, hands it over in one step (an append to a queue of the interpreter's own) and waits
on a lock that nobody else takes. So whatever tears it out of that, a signal's exception in any instruction, leaves
nothing of the store half done: the request was not made, or it is carried out whole.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from typing import Any

from lsmq import runtime
from lsmq.errors import InvalidRequest, MessageTooLarge, RequestTooLarge

from .memtable import RECORD_COLUMN_BYTES
from .queue_names import are_joined, join_names, split_names

_MANY_MESSAGES = 100


class Request:
    """One thread asks and waits, and is answered once: by another one, or by itself."""

    __slots__ = ("_answer", "_error", "abandoned", "is_answered")

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self.is_answered = False
        #: Nobody waits any more. Where the owner sees that in time, it leaves the request.
        self.abandoned = False
        self._answer = runtime.Lock()
        self._answer.acquire()

    @property
    def is_large(self) -> bool:
        """Whether it is not worth waiting for others, to be carried out with them."""
        return False

    def wait(self) -> None:
        """Return when it is carried out. Raises what made that fail."""
        self._answer.acquire()
        if self._error is not None:
            raise self._error

    def answer(self, error: BaseException | None = None) -> None:
        assert not self.is_answered, "a request is answered once"
        self._error = error
        self.is_answered = True
        self._answer.release()

    def settle(self, error: BaseException | None) -> None:
        """Answer, where that has not been done or whoever did was torn off in the midst of it."""
        if not self.is_answered:
            self._error, self.is_answered = error, True
        with contextlib.suppress(RuntimeError):  # it was released
            self._answer.release()


class Put(Request):
    """Messages to store, packed by whoever puts them: so the owner touches none of its objects, which lie in another
    core's cache.

    Attributes:
        names: of the queue of each message, or one where all are for one queue; none where there are many and
            ``joined`` tells them.
        joined: those as :func:`.queue_names.join_names` joins them.
        is_joined: that tells the name of each message.
        lengths: of each message.
        payload: the messages' bytes one after another.
        deadline: until when it may wait for room, by the store's clock.
        offsets: the answer.
    """

    __slots__ = ("deadline", "is_joined", "joined", "lengths", "names", "offsets", "payload")

    def __init__(self, pairs: Sequence[tuple[str, bytes]], limit_bytes: int) -> None:
        """Names of queues and messages, one or more; copied. Raises ``InvalidRequest``, ``MessageTooLarge``,
        ``RequestTooLarge``."""
        super().__init__()
        self.deadline = 0.0
        self.offsets: list[int] = []
        try:
            self._pack(pairs)
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"a queue name cannot be encoded in UTF-8: {error}") from error
        except OverflowError as error:
            raise MessageTooLarge("a message of 4 GiB or more cannot be stored; send it in parts") from error
        except (TypeError, ValueError) as error:
            raise _of_wrong_type(pairs) from error
        if len(pairs) > 1 and self.size_bytes > limit_bytes:
            raise RequestTooLarge(
                f"{len(pairs)} messages at a time take {self.size_bytes} bytes, over the limit of {limit_bytes} "
                "(max_waiting_bytes); none is stored. Put them in several calls, or raise the limit.",
                limit=limit_bytes,
                size=self.size_bytes,
            )

    def _pack(self, pairs: Sequence[tuple[str, bytes]]) -> None:
        messages = [message for _, message in pairs]
        self.lengths = array("I", list(map(len, messages)))  # of a list: half of what an iterator takes
        self.payload = b"".join(messages)
        names = [name for name, _ in pairs]
        is_one = names[0] == names[-1] and names.count(names[0]) == len(names)
        self.joined = join_names(names[:1] if is_one else names)
        self.is_joined = are_joined(self.joined, len(names))
        if is_one:
            names = names[:1]
        elif self.is_joined and len(names) >= _MANY_MESSAGES:
            names = []  # let go of while they are at hand: later each would be fetched again for that
        self.names = names

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def is_large(self) -> bool:
        return len(self.lengths) >= _MANY_MESSAGES

    @property
    def is_for_one_queue(self) -> bool:
        return len(self.names) == 1

    def every_name(self) -> list[str]:
        """The name of the queue of each message."""
        if len(self.names) == len(self):
            return self.names
        return split_names(self.joined) if self.is_joined else self.names * len(self)

    @property
    def size_bytes(self) -> int:
        """What it takes in the log and in memory, about."""
        return len(self.payload) + len(self.joined) + len(self.lengths) * RECORD_COLUMN_BYTES


def _of_wrong_type(pairs: Sequence[tuple[Any, Any]]) -> InvalidRequest:
    """Names the first that is no text or no bytes; looked for only when something is."""
    for place, pair in enumerate(pairs):
        at = f" (number {place} of {len(pairs)})" if len(pairs) > 1 else ""
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return InvalidRequest(f"each item is a queue name and a message; this one{at} is {pair!r:.40}")
        name, message = pair
        if not isinstance(name, str):
            return InvalidRequest(f"a queue name{at} is {name!r:.40}; it must be text")
        if isinstance(message, str):
            return InvalidRequest(f"the message{at} for queue {name!r:.40} is text; encode it: message.encode()")
        try:
            memoryview(message)
        except TypeError:
            return InvalidRequest(
                f"the message{at} for queue {name!r:.40} is of type {type(message).__name__}; it must be bytes,"
                " a bytearray or a memoryview"
            )
    return InvalidRequest("queue names must be text, and messages bytes, bytearrays or memoryviews of bytes")


class FlushRequest(Request):
    """Write to tables all that is stored by now."""

    __slots__ = ()


class Close(Request):
    """Commit, end all threads and release the directory."""

    __slots__ = ()
