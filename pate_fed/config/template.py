"""A commented `study.toml`, every setting with what it means."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from pate_fed.config.study import Study
from pate_fed.data import Schema
from pate_fed.learning import TABLE_STUDENTS, TABLE_TEACHERS
from pate_fed.privacy.protection import LEAST_PARTIES
from pate_fed.structure import DeclaredField, entries, to_plain

_WIDTH = 98
_COMMENT = textwrap.TextWrapper(
    _WIDTH, initial_indent="## ", subsequent_indent="## ", break_on_hyphens=False, break_long_words=False
)
_STUDENT = ("student", "name")  # implied by a table, and by how it learns
_ORDER = (
    "study",
    "about",
    "parties",
    "data",
    "teacher",
    "aggregation",
    "queries",
    "sums",
    "privacy",
    "secrecy",
    "student",
)


def study_template(
    *,
    name: str = "my-study",
    data: dict[str, Any] | None = None,
    schema: Schema | None = None,
    num_clients: int | None = None,
    records: int | None = None,
    notes: tuple[str, ...] = (),
    about: Mapping[str, str] | None = None,
) -> str:
    """The text of a `study.toml`. Settings that are left open stand in it as comments, with their defaults.

    `data` are the values of `[data]`, `about` those of its section, `records` a party's, about, `schema` the
    columns of a table; `notes` are sentences about these.
    """
    given: dict[str, dict[str, Any]] = {"study": {"name": name}, "data": dict(data or {})}
    given["about"] = dict(about or {})
    parties = {"num_clients": num_clients, "records": records}
    given["parties"] = {name: value for name, value in parties.items() if value is not None}
    if schema is not None:
        given["teacher"] = {"name": TABLE_TEACHERS[0]}
        if num_clients is None or num_clients >= LEAST_PARTIES:
            given["secrecy"] = {"secure_sum": True}  # hospitals refuse plain votes unless they say otherwise
    top = {entry.name: entry for entry in entries(Study)}
    lines = ["# A study. A line with # at its beginning is a default: take the # away to change it.", ""]
    for section in (*_ORDER, "engine"):
        kind = Study if section == "study" else _kind(top[section])
        lines.append(f"[{section}]")
        for entry in entries(kind):
            if _kind(entry) is None:
                implied = TABLE_STUDENTS[0] if schema and (section, entry.name) == _STUDENT else entry.default
                lines += _setting(entry, given.get(section, {}), implied)
        lines.append("")
        if section == "data" and schema is not None:
            lines += [
                line for note in notes for line in textwrap.wrap(f"# {note}", _WIDTH, subsequent_indent="# ")
            ]
            lines += [*_table(schema), ""]
    return "\n".join(lines)


def _kind(entry: DeclaredField) -> Any:
    """The dataclass of a section or of a table in one; None where it is a single value."""
    return next((kind for kind in entry.kinds if isinstance(kind, type) and is_dataclass(kind)), None)


def _setting(entry: DeclaredField, given: dict[str, Any], default: Any) -> list[str]:
    declared = entry.setting
    told = declared.help or declared.allowed
    if declared.choices:
        told += f"{': ' if told else ''}{', '.join(declared.choices + declared.also)}"
    value = given.get(entry.name, default)
    plain = json.dumps(to_plain(value), ensure_ascii=False)
    shown = f"{entry.name} = {plain.replace('e-0', 'e-') if isinstance(value, float) else plain}"
    if entry.name not in given:
        shown = f"# {entry.name} =" if value is None else f"# {shown}"
    return [*_COMMENT.wrap(told), shown]


def _table(schema: Schema) -> list[str]:
    values = to_plain(schema)
    columns, labels = values.pop("columns"), values.pop("labels")
    lines = ["[data.table]"]
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value]
    if labels:
        lines.append("[data.table.labels]  # each with the value for no and the one for yes")
    for name, both in labels:
        lines.append(f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(both, ensure_ascii=False)}")
    lines.append("[data.table.columns]")
    for name, allowed in columns:
        lines.append(
            f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(allowed or 'number', ensure_ascii=False)}"
        )
    return lines
