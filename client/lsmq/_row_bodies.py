"""Bodies as an application gives them: many objects, or one stretch of bytes in a buffer or an array of Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

from lsmq._row_columns import is_arrow, lengths_of, of_row, whole_numbers
from lsmq.errors import InvalidRequest
from lsmq.message_columns import MessageBatch
from lsmq.messages import body_bytes

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray


def bodies_and_lengths(bodies: Any, lengths: Any) -> tuple[list[bytes] | memoryview, NDArray[Any] | None, NDArray[Any]]:
    """A list and no starts, or a stretch of bytes and where each begins; and how long each is."""
    if isinstance(bodies, MessageBatch):
        raise InvalidRequest("bodies is a MessageBatch; give batch.bodies(), and its keys, tags and types")
    if isinstance(bodies, bytes | bytearray | memoryview) or (
        isinstance(bodies, np.ndarray) and bodies.dtype.kind not in "OSU"
    ):
        return _in_a_buffer(bodies, lengths)
    if lengths is not None:
        raise InvalidRequest(
            f"lengths are given, and bodies is of type {type(bodies).__name__}; they are for bodies in one buffer"
        )
    if is_arrow(bodies):
        return _of_arrow(bodies)
    if isinstance(bodies, np.ndarray):
        bodies = bodies.tolist()
    if isinstance(bodies, str | Mapping | Set) or not isinstance(bodies, Iterable):
        raise InvalidRequest(
            f"bodies is of type {type(bodies).__name__}; give a list of bodies, an array or table of Arrow, or one"
            " buffer and lengths"
        )
    found = list(bodies)
    if not set(map(type, found)) <= {bytes}:
        found = [of_row(row, body_bytes, body) for row, body in enumerate(found)]
    return found, None, lengths_of(found)


def _in_a_buffer(bodies: Any, lengths: Any) -> tuple[memoryview, NDArray[Any], NDArray[Any]]:
    try:
        view = memoryview(bodies)
        view = view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"bodies cannot be read as bytes: {error}; give a contiguous copy of it") from error
    if lengths is None:
        raise InvalidRequest(
            f"bodies is one buffer of {len(view)} bytes without lengths; give lengths=, of each body or one for all"
        )
    if type(lengths) is int:
        if lengths < 1 or len(view) % lengths:
            raise InvalidRequest(f"lengths is {lengths}; {len(view)} bytes of bodies are no multiple of it")
        each = np.full(len(view) // lengths, lengths, np.int64)
    else:
        each = whole_numbers(lengths, "lengths", None, len(view))
    ends = np.cumsum(each)
    if (total := int(ends[-1]) if len(ends) else 0) != len(view):
        raise InvalidRequest(f"lengths add up to {total}; the bodies have {len(view)} bytes")
    return view, ends - each, each


def _of_arrow(bodies: Any) -> tuple[memoryview, NDArray[Any], NDArray[Any]]:
    """Bodies of an array stay where they are; those of one in chunks, or of another kind, are copied."""
    import pyarrow as pa

    try:
        if isinstance(bodies, pa.ChunkedArray):
            one = bodies.num_chunks == 1
            bodies = bodies.chunk(0) if one else bodies.cast(pa.large_binary()).combine_chunks()
        array = bodies.cast(pa.large_binary())
    except (AttributeError, pa.ArrowException) as error:
        raise InvalidRequest(f"bodies is {_kind(bodies)} of Arrow; it must be a column of binary or of text") from error
    if array.null_count:
        row = array.is_null().to_numpy(zero_copy_only=False).argmax()
        raise InvalidRequest(f"row {row}: the body is null; fill in b'' for an empty one", row=int(row))
    _, places, values = array.buffers()
    cuts = np.zeros(1, np.int64)
    if len(array):
        cuts = np.frombuffer(places, np.int64, len(array) + 1, array.offset * 8)
    view = memoryview(b"" if values is None else values)
    return view.cast("B"), cuts[:-1], np.diff(cuts)


def _kind(value: Any) -> str:
    return str(getattr(value, "type", type(value).__name__))
