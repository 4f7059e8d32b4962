"""Columns as an application gives them: lists, numpy arrays, arrays of Arrow; as lists of values, or whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

from lsmq.errors import InvalidRequest, LsmqError

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_INT64 = (1 << 63) - 1


def is_arrow(value: object) -> bool:
    """Whether it is an object of pyarrow, which is not imported for that."""
    return type(value).__module__.partition(".")[0] == "pyarrow"


def column_of(value: Any, name: str, count: int, single: tuple[type, ...]) -> Any:
    """A list of as many values as there are rows; or the one that all have, None among them."""
    if value is None or isinstance(value, single):
        return value
    if is_arrow(value):
        value = value.to_pylist()
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, str | bytes | Mapping | Set) or not isinstance(value, Iterable):
        raise InvalidRequest(
            f"{name} is of type {type(value).__name__}; it must be a column, or one value for all rows"
        )
    values = value if type(value) is list else list(value)
    check_count(len(values), name, count)
    return values


def check_count(found: int, name: str, count: int) -> None:
    """Raises ``InvalidRequest`` for a column that has not as many rows as there are bodies."""
    if found != count:
        raise InvalidRequest(f"{name} has {found} rows, and bodies {count}; give one for each, or one for all")


def single_number(value: Any) -> int | None:
    """The value where it is a whole number."""
    try:
        return None if isinstance(value, bool) or (isinstance(value, np.ndarray) and value.ndim) else index(value)
    except TypeError:
        return None


def numbers_of(value: Any, name: str, count: int, most: int) -> NDArray[Any] | int:
    """Whole numbers from 0 to ``most``: of each row, or of all."""
    if value is None:
        return 0
    one = single_number(value)
    if one is None:
        return whole_numbers(value, name, count, most)
    if not 0 <= one <= most:
        raise InvalidRequest(f"{name} is {one}; it must be 0 to {most}", field=name, limit=most)
    return one


def whole_numbers(value: Any, name: str, count: int | None, most: int | None) -> NDArray[Any]:
    """A column as int64. Raises ``InvalidRequest`` for what is no whole number, below 0 or above ``most``."""
    if is_arrow(value):
        value = value.to_pylist() if value.null_count else value.to_numpy()
    if isinstance(value, str | bytes | Mapping | Set) or not isinstance(value, Iterable):
        raise InvalidRequest(f"{name} is of type {type(value).__name__}; it must be a column of whole numbers, or one")
    if not isinstance(value, np.ndarray) or value.dtype.kind == "O":
        value = list(value)
        check_count(len(value), name, len(value) if count is None else count)
        if not set(map(type, value)) <= {int}:
            value = [of_row(row, _whole, each, name) for row, each in enumerate(value)]
        try:
            value = np.array(value, np.int64)
        except OverflowError:
            row = next(row for row, each in enumerate(value) if not -_MAX_INT64 <= each <= _MAX_INT64)
            _out_of_range(name, row, value[row], most)
    if value.ndim != 1 or value.dtype.kind not in "iu":
        raise InvalidRequest(
            f"{name} is an array of {value.dtype} with {value.ndim} dimensions; it must be one of whole numbers"
        )
    check_count(len(value), name, len(value) if count is None else count)
    limit = _MAX_INT64 if most is None else most
    wrong = value > limit if value.dtype.kind == "u" or most is None else (value < 0) | (value > limit)
    if wrong.any():
        row = int(wrong.argmax())
        _out_of_range(name, row, value[row], most)
    made: NDArray[Any] = value.astype(np.int64)
    return made


def _whole(value: object, name: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError("a truth is no number")
        return index(value)  # type: ignore[arg-type]  # Which is what is found out here.
    except TypeError as error:
        raise InvalidRequest(
            f"{name} is {value!r} of type {type(value).__name__}; it must be a whole number"
        ) from error


def _out_of_range(name: str, row: int, value: object, most: int | None) -> NoReturn:
    allowed = "a number that 63 bits hold" if most is None else f"0 to {most}"
    raise InvalidRequest(f"row {row}: {name} is {value}; it must be {allowed}", field=name, row=row)


def lengths_of(values: Sequence[bytes]) -> NDArray[Any]:
    """Bytes of each."""
    return np.fromiter(map(len, values), np.int64, len(values))


def of_row(row: int, check: Callable[..., Any], *values: Any) -> Any:
    """What ``check`` gives; what it raises names the row."""
    try:
        return check(*values)
    except LsmqError as error:
        raise type(error)(f"row {row}: {error.message}", **{**error.details, "row": row}) from error
