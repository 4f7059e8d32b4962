"""Checks values against JSON Schemas: the same schemas that the OpenAPI document shows.

Only the keywords the API uses are known: ``type``, ``enum``, ``anyOf``, ``minimum``, ``maximum``,
``minLength``, ``maxLength``, ``pattern``, ``minItems``, ``maxItems``, ``items``, ``properties``,
``required`` and ``additionalProperties``. Two keywords are ours: ``x-lsmq-bin`` marks text that msgpack may
send as bin, and ``x-lsmq-time`` a time in milliseconds since 1970, which is refused where it can only be seconds.

Not supported: ``$ref`` (schemas are Python objects and hold each other), formats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lsmq.errors import InvalidRequest
from lsmq.message_times import AS_SECONDS, is_seconds
from lsmq_node.config import NodeConfig

Schema = Mapping[str, Any]

BIN = "x-lsmq-bin"
TIME = "x-lsmq-time"

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of a node's configuration, in a schema: the setting of this name, or ``most`` where that is less."""

    setting: str
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A description that names numbers of a node's configuration: ``{setting}``."""

    text: str


def object_of(properties: Mapping[str, Any], required: Sequence[str] | None = None, **rest: Any) -> dict[str, Any]:
    """An object with these fields and no others; all of them are ``required`` where nothing else is said."""
    names = list(properties) if required is None else list(required)
    found = {"type": "object", "properties": properties, **({"required": names} if names else {})}
    return {**found, "additionalProperties": False, **rest}


def list_of(items: Schema, description: str | None = None, **rest: Any) -> dict[str, Any]:
    return _described({"type": "array", "items": items, **rest}, description)


def integer(
    minimum: int | None = None,
    maximum: int | Limit | None = None,
    description: str | Said | None = None,
    *,
    null: bool = False,
    **rest: Any,
) -> dict[str, Any]:
    limits = {"minimum": minimum, "maximum": maximum}
    given = {name: value for name, value in limits.items() if value is not None}
    return _described({"type": ["integer", "null"] if null else "integer", **given, **rest}, description)


def time_ms(minimum: int, maximum: int, description: str | Said | None = None, *, null: bool = False) -> dict[str, Any]:
    """Milliseconds since 1970."""
    return integer(minimum, maximum, description, null=null, **{TIME: True})


def text(description: str | None = None, *, null: bool = False, or_bin: bool = False, **rest: Any) -> dict[str, Any]:
    """``or_bin``: msgpack may send it as bin."""
    marks = {BIN: True} if or_bin else {}
    return _described({"type": ["string", "null"] if null else "string", **marks, **rest}, description)


def flag(description: str | None = None, *, null: bool = False, **rest: Any) -> dict[str, Any]:
    return _described({"type": ["boolean", "null"] if null else "boolean", **rest}, description)


def _described(schema: dict[str, Any], description: str | Said | None) -> dict[str, Any]:
    return schema if description is None else {**schema, "description": description}


def bound(schema: Any, config: NodeConfig) -> Any:
    """The schema with the numbers of a configuration in the places of :class:`Limit` and :class:`Said`."""
    match schema:
        case Limit():
            value = getattr(config, schema.setting)
            return value if schema.most is None else min(value, schema.most)
        case Said():
            return schema.text.format_map(asdict(config))
        case Mapping():
            return {name: bound(value, config) for name, value in schema.items()}
        case list() | tuple():
            return [bound(value, config) for value in schema]
        case _:
            return schema


def check(value: Any, schema: Schema, path: str) -> None:
    """Raise :class:`InvalidRequest` naming ``path``, what is wrong there, the limit and the remedy."""
    if "anyOf" in schema:
        _check_any(value, schema, path)
        return
    if "enum" in schema:
        # 1 is not true here.
        if not any(value == each and isinstance(value, bool) is isinstance(each, bool) for each in schema["enum"]):
            choices = ", ".join(map(_shown, schema["enum"]))
            _refuse(path, f"is {_shown(value)}; it must be one of {choices}")
        return
    if "type" in schema and not _is_of(value, schema):
        _refuse(path, f"is {_kind_of(value)}; it must be {_article(schema['type'])}")
    match value:
        case bool() | None:
            pass
        case int() | float():
            _check_number(value, schema, path)
        case str() | bytes():
            _check_text(value, schema, path)
        case list() | tuple():
            _check_length(len(value), schema, path, "Items", "items")
            if "items" in schema and not _are_integers(value, schema["items"]):
                for index, item in enumerate(value):
                    check(item, schema["items"], f"{path}[{index}]")
        case dict():
            _check_object(value, schema, path)


def matches(value: Any, schema: Schema) -> bool:
    """Whether :func:`check` would pass."""
    try:
        check(value, schema, "")
    except InvalidRequest:
        return False
    return True


def _refuse(path: str, problem: str) -> None:
    raise InvalidRequest(f"{path or 'the body'} {problem}", field=path)


def _is_of(value: Any, schema: Schema) -> bool:
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for kind in kinds:
        if isinstance(value, bool):
            if kind == "boolean":
                return True
        elif isinstance(value, _KINDS[kind]) or (isinstance(value, bytes) and schema.get(BIN)):
            return True
    return False


def _are_integers(values: list[Any] | tuple[Any, ...], schema: Schema) -> bool:
    """Whether these are plainly what the schema says, where that is integers: :func:`check` takes far longer."""
    if schema.get("type") != "integer" or not values or set(map(type, values)) != {int}:
        return False
    return bool(schema.get("minimum", min(values)) <= min(values) and max(values) <= schema.get("maximum", max(values)))


def _check_any(value: Any, schema: Schema, path: str) -> None:
    options = schema["anyOf"]
    if any(matches(value, option) for option in options):
        return
    fitting = [option for option in options if "type" in option and _is_of(value, option)]
    if len(fitting) == 1:
        check(value, fitting[0], path)
    _refuse(path, f"is {_shown(value)}; it must be " + " or ".join(dict.fromkeys(map(_option, options))))


def _check_number(value: float, schema: Schema, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        _refuse(path, f"is {value}; it must be a finite number")
    if "minimum" in schema and value < schema["minimum"]:
        _refuse(path, f"is {value}; the least it may be is {schema['minimum']}")
    if "maximum" in schema and value > schema["maximum"]:
        _refuse(path, f"is {value}; the limit is {schema['maximum']}")
    if schema.get(TIME) and is_seconds(value):
        _refuse(path, f"is {value}, {AS_SECONDS}")


def _check_text(value: str | bytes, schema: Schema, path: str) -> None:
    _check_length(len(value), schema, path, "Length", "characters")
    if isinstance(value, str):
        if "pattern" in schema and re.fullmatch(schema["pattern"], value) is None:
            legal = schema.get("description", f"must match {schema['pattern']}")
            _refuse(path, f"is {_shown(value)}; {legal[0].lower()}{legal[1:]}")
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse(path, "holds half of a surrogate pair, which is not text; send bytes as body_b64")


def _check_length(length: int, schema: Schema, path: str, suffix: str, unit: str) -> None:
    if length < schema.get(f"min{suffix}", 0):
        _refuse(path, f"has {length} {unit}; it needs at least {schema[f'min{suffix}']}")
    if length > schema.get(f"max{suffix}", length):
        _refuse(path, f"has {length} {unit}; the limit is {schema[f'max{suffix}']}")


def _check_object(value: dict[Any, Any], schema: Schema, path: str) -> None:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    prefix = f"{path}." if path else ""
    rest = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            unknown = [other for other in value if isinstance(other, str) and other not in properties]
            if rest is False and unknown:  # it may be the same field, misspelt
                _refuse_unknown(f"{prefix}{unknown[0]}", properties)
            _refuse(f"{prefix}{name}", "is missing")
    _check_length(len(value), schema, path, "Properties", "entries")
    for name, item in value.items():
        if not isinstance(name, str):
            _refuse(f"{prefix}{name!r}", "is a key that is not text")
        if name in properties:
            check(item, properties[name], f"{prefix}{name}")
        elif rest is False:
            _refuse_unknown(f"{prefix}{name}", properties)
        elif isinstance(rest, Mapping):
            check(item, rest, f"{prefix}{name}")


def _refuse_unknown(path: str, properties: Mapping[str, Schema]) -> None:
    _refuse(path, f"is not known; the fields are {', '.join(properties)}")


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(str(value) if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _kind_of(value: Any) -> str:
    if isinstance(value, bytes):
        return "bytes"
    for kind, types in _KINDS.items():
        if type(value) in types:
            return _article(kind)
    return type(value).__name__


def _article(kind: str | list[str]) -> str:
    if isinstance(kind, list):
        return " or ".join(_article(option) for option in kind)
    return {"null": "null", "string": "text", "boolean": "true or false"}.get(
        kind, f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    )


def _option(option: Schema) -> str:
    if "enum" in option:
        return " or ".join(map(_shown, option["enum"]))
    text = _article(option["type"])
    return f"{text} from {option['minimum']}" if "minimum" in option else text
