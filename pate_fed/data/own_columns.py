"""How a hospital's own file differs from its study's table: names, units, codes; in a file beside it.

The hospital's file itself is left as it is. Whatever reads it reads `NAME.csv.toml` too, so that what
`pate-fed hospital check` shows is what a study learns from. Errors never say what stands in a cell.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pate_fed.data.schema import MOST_TEXT, Schema, number_in
from pate_fed.disk import read_toml, write_result
from pate_fed.errors import InputError
from pate_fed.format import printable
from pate_fed.structure import from_plain, nearest, setting


def _texts(value: Any) -> Any:
    each = value.values() if isinstance(value, Mapping) else (value,)  # a table of texts, or one of them
    if not all(isinstance(text, str) for text in each):
        raise InputError('a table is meant, {"what the file has" = "what the study has"}, all in quotes')
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnColumn:
    """How one column of a study is read from a hospital's file.

    `name` is what the file calls it, `factor` what makes its numbers the study's unit, `map` what its codes
    mean ("" for a missing value). `missing`: the file has no such column, so all its rows lack it.
    """

    name: str | None = setting(None, allowed="the column's name in the file", most=MOST_TEXT)
    factor: float | None = setting(None, above=0, allowed="a finite number above 0")
    map: Mapping[str, str] = setting(factory=dict, read=_texts)
    missing: bool = False


_AS_IT_IS = OwnColumn()
_HEAD = "# How pate-fed reads {}, which stays as it is; by `pate-fed hospital check`."


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnColumns:
    """A hospital's settings for one file, by the study's columns.

    `files`, from the file's folder on, have further columns: one row a patient, under the same column's name.
    With `leave_out` rows that nobody could learn from are: those without a label, a patient or all values.
    """

    columns: Mapping[str, OwnColumn] = setting(factory=dict)
    files: tuple[str, ...] = ()
    leave_out: bool = False

    @staticmethod
    def path_of(data: Path) -> Path:
        """Where the settings for a file stand."""
        return data.with_name(f"{data.name}.toml")

    @classmethod
    def beside(cls, data: Path, schema: Schema) -> OwnColumns:
        """The settings for a file, none where it has none of them; InputError says where they are wrong."""
        path = cls.path_of(data)
        if not os.path.lexists(path):  # a link to nowhere is no file without settings
            return cls()
        try:
            values = read_toml(path, option="the settings")
        except InputError as error:  # TOML's own words may have a code of the file in them
            place = re.search(r"\(at [^()]*\)$", str(error))
            raise (InputError(f"{path}: not valid TOML {place[0]}") if place else error) from None
        return from_plain(cls, values, where=str(path)).held_to(schema, where=str(path))

    def held_to(self, schema: Schema, *, where: str) -> OwnColumns:
        """These settings, which go with a study's schema; else an InputError that begins with `where`."""
        for name, each in self.columns.items():
            if (wrong := _wrong(name, each, schema)) is not None:
                raise InputError(f"{where}: columns.{name}{wrong}")
        if self.files and schema.patient is None:
            raise InputError(f"{where}: files: they are joined by the patient, and the study names none")
        return self

    def of(self, name: str) -> OwnColumn:
        """How a column is read."""
        return self.columns.get(name, _AS_IT_IS)

    def changed(self, name: str, changes: Mapping[str, Any]) -> OwnColumns:
        """The same but for a column; a `map` is added to its own."""
        both = {**self.of(name).map, **changes.get("map", {})}
        return replace(
            self, columns={**self.columns, name: replace(self.of(name), **{**changes, "map": both})}
        )

    def named(self, data: Path, header: list[str]) -> list[str]:
        """The file's header in the study's names; empty for what stands there for another column.

        Raises:
            InputError: a column that is named is not there.
        """
        own: dict[str, str] = {}
        for name, each in self.columns.items():
            if each.name is not None:
                if each.name not in header or each.name in own:
                    why = "is named twice" if each.name in own else f"is not in {data.name}"
                    near = "" if each.name in own else nearest(each.name, header)
                    raise InputError(f"{self.path_of(data)}: columns.{name}.name: that column {why}{near}")
                own[each.name] = name
        taken = {*own.values()} | {name for name, each in self.columns.items() if each.missing}
        return [own.get(name, "" if name in taken else name) for name in header]

    def described(self) -> str:
        """What differs, in words, without any value of the file."""
        said = [f"joined with {', '.join(self.files)}"] if self.files else []
        said += ["rows without label, patient or all values left out"] if self.leave_out else []
        for name, each in self.columns.items():
            told = ["of another name"] if each.name is not None else []
            told += [f"× {each.factor:g}"] if each.factor not in (None, 1) else []
            told += ["codes mapped"] if each.map else []
            told += ["missing for all rows"] if each.missing else []
            said += [f"{name} {' and '.join(told)}"] if told else []
        return ", ".join(said)

    def write(self, data: Path, *, before: OwnColumns | None = None) -> Path:
        """Write the settings beside the file, for this user alone; where they are.

        What differs from `before`, as it was read there, is put into the file; the rest, comments too, stays
        as it stands. A file that cannot be changed so is written anew, and kept as NAME.bak.

        Raises:
            InputError: they cannot be written there.
        """
        path = self.path_of(data)
        text = path.read_text("utf-8-sig") if before is not None and path.exists() else ""
        fresh = "\n".join(self._changes([_HEAD.format(printable(data.name))], OwnColumns()))
        made = "\n".join(self._changes(text.splitlines(), before)) if text and before is not None else fresh
        if made != fresh and not self._reads(made):
            write_result(path.with_name(f"{path.name}.bak"), text.encode())
            made = fresh
        write_result(path, f"{made}\n".encode())
        return path

    def _reads(self, text: str) -> bool:
        try:
            return from_plain(OwnColumns, tomllib.loads(text), where="") == self
        except (ValueError, InputError):
            return False

    def _changes(self, lines: list[str], before: OwnColumns) -> list[str]:
        """The lines of a file that says `before`, with what differs put in."""
        first = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
        if self.files != before.files:
            _put(lines, first, "files", f"[{', '.join(map(quoted, self.files))}]")
        if self.leave_out != before.leave_out:
            _put(lines, first, "leave_out", "true")
        for name, each in self.columns.items():
            head, old = f"[columns.{quoted(name, key=True)}]", before.of(name)
            if each == old and name in before.columns:
                continue
            found = [place for place, line in enumerate(lines) if line.partition("#")[0].strip() == head]
            if not found:
                lines += ["", head]
            start = (found or [len(lines) - 1])[0] + 1
            pairs = ", ".join(
                f"{quoted(text, key=True)} = {quoted(meant)}" for text, meant in each.map.items()
            )
            for key, value in (
                ("missing", "true" if each.missing else ""),
                ("map", f"{{ {pairs} }}" if each.map != old.map else ""),
                ("factor", "" if each.factor in (None, old.factor) else repr(each.factor)),
                ("name", "" if each.name in (None, old.name) else quoted(str(each.name))),
            ):
                if value:
                    _put(lines, start, key, value)
        return lines


def _put(lines: list[str], start: int, key: str, value: str) -> None:
    """Give a key of the table that begins there its value, in its line or in a new one."""
    for place in range(start, len(lines)):
        if lines[place].startswith("["):
            break
        if re.match(rf"\s*{key}\s*=", lines[place]):
            comment = re.search(r"\s+#[^\"']*$", lines[place])
            lines[place] = f"{key} = {value}{comment[0] if comment else ''}"
            return
    lines.insert(start, f"{key} = {value}")


def quoted(text: str, *, key: bool = False) -> str:
    """A text, or a key, as TOML has it."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", text) and key:
        return text
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _wrong(name: str, each: OwnColumn, schema: Schema) -> str | None:
    """What does not go with the schema, after the column's name; None: all does."""
    columns = dict(schema.columns) | dict(schema.outcomes)
    patient = name == schema.patient
    if name not in columns and not patient:
        return f": no column of the study{nearest(name, columns)}"
    values = columns.get(name, ())
    if each.missing and (name in dict(schema.outcomes) or patient):
        return ".missing: every record needs it"
    if each.missing and each != OwnColumn(missing=True):
        return ".missing: a column that the file lacks has no name, factor or map"
    if each.factor is not None and (values or patient):
        return ".factor: for numbers alone; the study's is none"
    if each.map and patient:
        return ".map: patients are told apart as they are"
    for place, meant in enumerate(each.map.values(), start=1):
        if meant and (meant not in values if values else number_in(meant) is None):
            known = f"one of {', '.join(values)}" if values else "a number"
            return f'.map: its value {place} is not {known}, nor "" for a missing one'
    return None
