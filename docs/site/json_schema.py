"""A file of settings as a JSON schema: types, defaults and bounds, for the reference and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pate_fed.config.study import Study
from pate_fed.structure import PART_NAME, DeclaredField, Setting, entries, to_plain

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
_BOUNDS = (
    ("low", "minimum"),
    ("high", "maximum"),
    ("above", "exclusiveMinimum"),
    ("below", "exclusiveMaximum"),
)


def study_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of `study.toml`, in which a study's name and seed stand in [study]."""
    schema = json_schema(Study, title="study.toml of pate_fed")
    tables = schema["properties"]
    top = {name: tables.pop(name) for name in [key for key, value in tables.items() if "$ref" not in value]}
    tables["study"] = {"type": "object", "additionalProperties": False, "properties": top}
    return schema


def json_schema(kind: type[Any], *, title: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of the TOML file that a dataclass of settings is read from."""
    tables: dict[str, Any] = {}
    return {"$schema": _DIALECT, "title": title, **_schema_of_table(kind, tables), "$defs": tables}


def _schema_of_table(kind: type[Any], tables: dict[str, Any]) -> dict[str, Any]:
    found = entries(kind)
    required = [entry.name for entry in found if entry.required]
    table = {
        "type": "object",
        "additionalProperties": False,
        "properties": {entry.name: _schema_of_setting(entry, tables) for entry in found},
    }
    return {**table, "required": required} if required else table


def _schema_of_setting(entry: DeclaredField, tables: dict[str, Any]) -> dict[str, Any]:
    declared = entry.setting
    if declared.read is not None:  # written in a form of its own, which its reader checks
        value: dict[str, Any] = {}
    else:
        forms = [_form(kind, declared, tables) for kind in entry.kinds]
        value = forms[0] if len(forms) == 1 else {"anyOf": forms}
    if "$ref" in value:
        return value
    said = declared.help or declared.allowed
    if declared.unit:
        said = f"{said} ({declared.unit})" if said else declared.unit
    told = {"description": said} if said else {}
    default = {} if entry.default in (MISSING, None) else {"default": to_plain(entry.default)}
    return {**told, **value, **default}


def _form(kind: Any, declared: Setting, tables: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        if Ellipsis in inner:
            return {"type": "array", "items": _form(inner[0], declared, tables)}
        each = [_form(one, declared, tables) for one in inner]
        return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _form(inner[1], declared, tables)}
    if isinstance(kind, type) and is_dataclass(kind):
        if kind.__name__ not in tables:
            tables[kind.__name__] = {}  # its place, should it hold itself
            tables[kind.__name__] = _schema_of_table(kind, tables)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if kind in (Any, NoneType):
        return {}
    return {"type": _TYPES[kind], **(_text(declared) if kind is str else _number(kind, declared))}


def _text(declared: Setting) -> dict[str, Any]:
    allowed: dict[str, Any] = {}
    if declared.choices or declared.also:
        named = {"enum": [*declared.choices, *declared.also]}
        own = {"pattern": f"^(?:{PART_NAME.pattern})$"}
        allowed |= {"anyOf": [named, own]} if declared.part else named
    if declared.pattern is not None:
        allowed["pattern"] = f"^(?:{declared.pattern.pattern})$"
    if declared.most is not None:
        allowed["maxLength"] = declared.most
    return allowed


def _number(kind: Any, declared: Setting) -> dict[str, Any]:
    if kind not in (int, float):
        return {}
    bounds = {word: getattr(declared, name) for name, word in _BOUNDS}
    return {word: bound for word, bound in bounds.items() if bound is not None}
