"""What all configuration dataclasses share: describing a setting, reading it from text, checking its range.

A setting is a dataclass field whose metadata hold ``description``, ``hazard`` (what a wrong value does, may be empty)
and, for numbers, ``range`` as ``(lowest, highest)``. Names end in their unit.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from lsmq.errors import InvalidRequest
from lsmq.units import duration_ms, size_bytes

KIB = 1024
MIB = 1024 * KIB

#: Settings that end so may be written with a unit.
_UNITS = {"_bytes": size_bytes, "_ms": duration_ms}


class InvalidConfig(InvalidRequest):
    """A setting is unknown, of the wrong type or out of its range; ``details`` name ``setting``."""

    code = "invalid_config"


def setting(default: Any, description: str, *, range: tuple[int, int] | None = None, hazard: str = "") -> Any:
    """A field with a default; ``...`` for one that must be given."""
    metadata = {"description": description, "hazard": hazard, "range": range}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


def known_fields(kind: Any) -> Mapping[str, Field[Any]]:
    """The settings of a configuration dataclass by name. A field without a description is a part of another one."""
    return {entry.name: entry for entry in fields(kind) if "description" in entry.metadata}


def chosen(config: Any) -> dict[str, Any]:
    """Those of a configuration's ``to_dict()`` that are not as they are when nobody says anything."""
    values = config.to_dict()
    found: dict[str, Any] = {}
    for name, entry in known_fields(type(config)).items():
        value = getattr(config, name)
        if value != (entry.default if entry.default_factory is MISSING else entry.default_factory()):
            found[name] = chosen(value) if is_dataclass(value) else values[name]
    return found


def unknown_setting(source: str, name: str, known: typing.Iterable[str]) -> InvalidConfig:
    """Names what was meant, probably; where nothing is like it, where all are listed."""
    alike = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    meant = f"did you mean {' or '.join(alike)}?" if alike else "python -m lsmq_node.config_file prints all there are"
    return InvalidConfig(f"{source}: there is no setting {name!r}; {meant}", setting=name)


def check_ranges(config: Any, prefix: str = "") -> None:
    """Raises :class:`InvalidConfig` for the first number that is out of its range."""
    for entry in fields(config):
        limits = entry.metadata.get("range")
        value = getattr(config, entry.name)
        if limits is not None and value is not None and not limits[0] <= value <= limits[1]:
            name = f"{prefix}{entry.name}"
            raise InvalidConfig(f"{name} is {value}; it must be {limits[0]} to {limits[1]}", setting=name)


def convert(value: Any, kind: Any, what: str) -> Any:
    """``value`` as ``kind``; text, as the environment has it, is parsed. Raises :class:`InvalidConfig`."""
    if typing.get_origin(kind) is types.UnionType:
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    if kind is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise InvalidConfig(f"{what} is {value!r}; it must be true or false", setting=what)
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    if kind is int and isinstance(value, str):
        return _number(value, what)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if issubclass(kind, Enum) and isinstance(value, str | Enum):
        text = value.value if isinstance(value, Enum) else value
        try:
            return kind(text)
        except ValueError:
            choices = ", ".join(repr(choice.value) for choice in kind)
            raise InvalidConfig(f"{what} is {text!r}; it must be one of {choices}", setting=what) from None
    name = {int: "an integer", str: "text", Path: "a path"}.get(kind, f"one of {kind.__name__}")
    raise InvalidConfig(f"{what} is {value!r}; it must be {name}", setting=what)


def _number(text: str, what: str) -> int:
    """An integer; of a size also ``64KiB``, and of a length of time ``30s``."""
    try:
        return int(text.replace("_", ""))
    except ValueError:
        unit = next((unit for ending, unit in _UNITS.items() if what.endswith(ending)), None)
    try:
        if unit is not None:
            return unit(text)
    except ValueError as error:
        raise InvalidConfig(f"{what}: {error}", setting=what) from None
    raise InvalidConfig(f"{what} is {text!r}; it must be an integer", setting=what)


def plain(value: Any) -> Any:
    """A setting's value in types that JSON and TOML know."""
    match value:
        case Path():
            return str(value)
        case Enum():
            return value.value
        case tuple():
            return [plain(item) for item in value]
        case Mapping():
            return {name: plain(item) for name, item in value.items()}
        case _:
            return value
