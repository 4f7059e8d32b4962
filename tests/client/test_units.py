"""Sizes and lengths of time as people write them: exact, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.units import duration_ms, size_bytes


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0s", 0),
        ("0ms", 0),
        ("0.0d", 0),
        ("1ms", 1),
        ("0.001s", 1),
        ("1.0ms", 1),
        ("0.1s", 100),
        ("4.35s", 4_350),
        (" 1.5m ", 90_000),
        ("2w", 1_209_600_000),
        ("9007199254740993ms", 9_007_199_254_740_993),
    ],
)
def test_a_length_of_time_is_what_it_says(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@given(st.integers(0, 10**15))
def test_thousandths_of_seconds_are_exact(ms: int) -> None:
    assert duration_ms(f"{ms // 1000}.{ms % 1000:03}s") == ms == duration_ms(f"{ms}ms")


@pytest.mark.parametrize(
    "text",
    ["", "1", "s", "-1s", "+1s", "1e3s", "nans", "infs", "٣s", "1.s", ".5s", "1 s", "1S", f"{'9' * 400}d", "9" * 5_000],
)
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a length of time"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["0.5ms", "0.0001s", "1.0005s"])
def test_parts_of_a_millisecond_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="milliseconds"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1", 1), ("64KiB", 65_536), ("64k", 65_536), ("10GB", 10**10), ("2 t", 2 << 40)]
)
def test_a_size_is_what_it_says(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5k", "1ib", "٣", "1e9", "9" * 5_000, "0x10"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        size_bytes(text)
