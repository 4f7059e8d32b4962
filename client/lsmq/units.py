"""Sizes and lengths of time as people write them."""

from __future__ import annotations

import re

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def duration_ms(text: str) -> int:
    """``250ms``, ``30s``, ``1.5m``, ``12h``, ``7d`` or ``2w`` in milliseconds. Raises ``ValueError``, also where these
    are not whole."""
    match = re.fullmatch(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?(ms|s|m|h|d|w)", text.strip())
    if match is None:
        raise ValueError(f"{text!r:.80} is not a length of time; write 250ms, 30s, 15m, 12h or 7d")
    parts = match[2] or ""
    whole, rest = divmod(int(match[1] + parts) * _UNITS_MS[match[3]], int(10 ** len(parts)))
    if rest:
        raise ValueError(f"{text!r} is no whole number of milliseconds; leave out what is below one")
    return whole


def is_whole_number(text: str) -> bool:
    """Whether a text is a whole number of no more digits than any number here has."""
    return re.fullmatch(r"[0-9]{1,19}", text) is not None


def size_bytes(text: str) -> int:
    """``4096``, ``64KiB`` or ``64K`` (powers of 1024), ``10GB`` (powers of 1000) in bytes. Raises ``ValueError``."""
    match = re.fullmatch(r"([0-9]{1,19})\s*([kmgt]?)(i?b)?", text.strip().lower())
    if match is None or (match[3] == "ib" and not match[2]):
        raise ValueError(f"{text!r:.80} is not a size; write a number of bytes, or 64KiB, 10MiB, 2GiB")
    base = 1000 if match[3] == "b" else 1024
    return int(match[1]) * int(base ** _POWERS[match[2]])
