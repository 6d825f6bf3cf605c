"""Records out of a hospital's own stores, as the text of a CSV file.

NAME.sql is asked of the database that NAME.sql.url names, NAME.fhir of a folder of FHIR's bulk export or of
bundles. All hospitals of a study may run the same. NAME.xlsx and NAME.parquet are tables as they are. Errors
name file and line, never what stands there.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from pate_fed.disk import MOST_READ, MOST_TABLE, open_regular, read_file, read_toml
from pate_fed.errors import InputError, naming_extras, naming_refusal
from pate_fed.structure import from_plain, setting

Resource = dict[str, Any]
Units = Mapping[str, float] | None
_Parts = list[tuple[Resource, set[tuple[str, str]]]]

_MOST_BUNDLE = 2**28  # bytes
_THOUSAND = re.compile(r"-?\d{1,3}\.\d{3}")  # it may be read so, where other columns have decimal commas
# A query of which only an inner one is ordered answers in another order each time.
_ORDERED = re.compile(r"\s*(select|with)\b.*\border\s+by\b(?!.*\bfrom\b)", re.IGNORECASE | re.DOTALL)
_OF_PATIENT = re.compile(r"(?:@(\d{4}-\d\d-\d\d) - )?Patient\.([A-Za-z.]+)")
_SEARCH = re.compile(r"([A-Z][A-Za-z]+)\?(.+)")
_DAY = re.compile(r"(lt|le|gt|ge)(\d{4}-\d\d-\d\d)")
_RESULTS = (("_summary", "count"), ("_sort", "date"), ("_sort", "-date"))
_DATED = re.compile(r"(effective|onset|performed|occurrence)(DateTime|Period|Instant)|period|authoredOn")
_VOID = {"entered-in-error", "cancelled", "not-done", "refuted"}


def answer_of(path: Path) -> str | None:
    """The answer of a query file, or a table's rows, as a CSV text with decimal points; None: it is neither.

    Raises:
        InputError: query, store or table cannot be read, or its library is missing; the error says where.
    """
    ask = {
        ".sql": _rows_by_sql,
        ".fhir": _rows_by_fhir,
        ".xlsx": _rows_of_workbook,
        ".parquet": _rows_of_parquet,
    }.get(path.suffix.lower())
    if ask is None:
        return None
    text = io.StringIO("sep=,\n")  # so that no reader guesses
    text.seek(0, io.SEEK_END)
    lines = csv.writer(text, lineterminator="\n")
    for row in ask(path):
        lines.writerow(map(_cell, row))
        if text.tell() > MOST_TABLE:
            raise InputError(f"{path}: its answer is larger than {MOST_TABLE // 2**20} MiB; ask for less")
    return text.getvalue()


def _cell(value: object) -> str:
    known = "" if value is None else str(value)
    return f"{known}0" if isinstance(value, float | Decimal) and _THOUSAND.fullmatch(known) else known


def _rows_of_workbook(path: Path) -> Iterator[Iterable[object]]:
    """All rows of the one sheet of an Excel workbook that holds any, as they were last computed."""
    with naming_extras(f"{path}: an Excel workbook"):
        from openpyxl import load_workbook
    with _reading(path, "an Excel workbook"), open_regular(path) as file:
        book = load_workbook(file, read_only=True, data_only=True)
        sheets = [sheet for sheet in book.worksheets if any(map(any, sheet.iter_rows(values_only=True)))]
        if len(sheets) != 1:
            raise InputError(f"{path}: {len(sheets)} of its sheets hold something; one is meant")
        yield from sheets[0].iter_rows(values_only=True)


def _rows_of_parquet(path: Path) -> Iterator[Iterable[object]]:
    """The columns' names, and all rows of a Parquet file."""
    with naming_extras(f"{path}: a Parquet file"):
        from pyarrow.parquet import ParquetFile
    with _reading(path, "a Parquet file"), open_regular(path) as file:
        table = ParquetFile(file)
        yield table.schema_arrow.names
        for batch in table.iter_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Let whatever a library says of a damaged file be a sentence: its own words may hold a value."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of many kinds
        raise InputError(f"{path}: cannot be read as {what} ({type(error).__name__})") from None


def _rows_by_sql(path: Path) -> Iterator[Iterable[object]]:
    """The columns' names, and the rows that a database answers; nothing is ever committed there."""
    from sqlalchemy import NullPool, create_engine

    logging.getLogger("sqlalchemy").setLevel(logging.CRITICAL + 1)  # it tells what drivers say, with values
    query, secret = _text(path, "a query in SQL"), path.with_name(f"{path.name}.url")
    if not _ORDERED.match(re.sub(r"--[^\n]*", "", query)):
        raise InputError(f"{path}: one SELECT is meant, which ends with ORDER BY: rows keep their places so")
    url = _text(secret, "the database's URL, as SQLAlchemy has it,")
    if stat.S_IMODE(secret.stat().st_mode) & 0o077:
        raise InputError(f"{secret}: others can read it, and a password may stand there; chmod 600 it")
    try:
        with create_engine(url, poolclass=NullPool).connect() as connection:  # closed with it
            how = connection.execution_options(stream_results=True, no_parameters=True)
            answer = how.exec_driver_sql(query.rstrip(";"))
            yield answer.keys()
            yield from answer
    except ImportError as error:
        raise InputError(f"{path}: the database's driver is not installed: {error.name}") from None
    except Exception as error:  # drivers fail in many ways; their words may hold a password, or a value
        why = type(getattr(error, "orig", None) or error).__name__
        raise InputError(f"{path}: the database refuses it ({why}); its own client says more") from None


def _text(path: Path, meant: str) -> str:
    with naming_refusal(f"{path}: cannot be read", f"; {meant} is meant there"):
        return read_file(path).decode("utf-8-sig", "replace").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class _FhirQuery:
    """One row a patient: `columns` are searches, `units` what makes a column's values the study's unit."""

    columns: Mapping[str, str]
    units: Mapping[str, Mapping[str, float]] = setting(factory=dict)
    export: str = "export"


def _rows_by_fhir(path: Path) -> Iterator[Iterable[object]]:
    """The columns' names, and a row for each patient of the export, in its order."""
    query = from_plain(_FhirQuery, read_toml(path, option="the query"), where=str(path))
    asked = ((text, f"{path}: columns.{name}", query.units.get(name)) for name, text in query.columns.items())
    columns = [_column(*each) for each in asked]
    export, people, references = path.parent / query.export, dict[str, Resource](), dict[str | None, str]()
    for where, url, found in _resources(export, {"Patient"}):
        with _naming(where):
            people[found["id"]] = found
            references[f"Patient/{found['id']}"] = references[url] = found["id"]
    searches = [each for each in columns if isinstance(each, _Search)]
    for where, _, found in _resources(export, {each.kind for each in searches}):
        with _naming(where):
            who, told = references.get(_whose(found)), (found.get("status"), found.get("verificationStatus"))
            if who is not None and _VOID.isdisjoint(code for _, code in _codes([*told])):
                parts = [(each, _both(each.get("code"))) for each in (found, *found.get("component", ()))]
                for search in searches:
                    search.take(who, found, parts, where)
    yield query.columns
    for place, (who, person) in enumerate(people.items(), start=1):
        with _naming(f"{export}: patient {place}"):
            yield [each.told(who) if isinstance(each, _Search) else each(person) for each in columns]


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Let what is not formed as FHIR has it be a sentence that names the place."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise InputError(f"{where}: not JSON, or no resource as FHIR has them") from None


def _resources(export: Path, kinds: set[str]) -> Iterator[tuple[str, str | None, Resource]]:
    """The resources of these kinds with their places and, in a bundle, their URLs."""
    with naming_refusal(f"{export}: cannot be read", "; a folder of *.ndjson, or a bundle, is meant there"):
        files = sorted(export.glob("*.*json")) if export.is_dir() else [export]
        for file in files:
            for where, url, found in (_entries if file.suffix == ".json" else _lines)(file, kinds):
                with _naming(where):
                    if found["resourceType"] in kinds:
                        yield where, url, found
    if not files:
        raise InputError(f"{export}: holds no .ndjson or .json of FHIR's bulk export, nor bundles")


def _lines(file: Path, kinds: set[str]) -> Iterator[tuple[str, str | None, Resource]]:
    asked, number = [json.dumps(kind).encode() for kind in kinds], 0
    with open_regular(file) as lines:
        while line := lines.readline(MOST_READ):
            where, line, number = f"{file} line {number + 1}", line.strip(), number + 1
            with _naming(where):
                if line and (line[:1] != b"{" or line[-1:] != b"}"):
                    raise ValueError
                if any(kind in line for kind in asked):  # no other line is parsed
                    yield where, None, json.loads(line)


def _entries(file: Path, kinds: set[str]) -> Iterator[tuple[str, str | None, Resource]]:
    content = read_file(file, most=_MOST_BUNDLE)
    with _naming(str(file)):
        whole = json.loads(content)
        entries = whole.get("entry", []) if whole["resourceType"] == "Bundle" else [{"resource": whole}]
        for number, entry in enumerate(entries, start=1):
            yield f"{file} entry {number}", entry.get("fullUrl"), entry["resource"]


def _whose(found: Resource) -> str:
    """The patient's reference: a URL of a bundle, or Patient/ID whatever server and version it names."""
    reference = (found.get("subject") or found.get("patient") or {}).get("reference", "-")
    known = re.search(r"(?:^|/)(Patient/[^/|]+)", reference)
    return known[1] if known else str(reference)


def _codes(value: Any) -> Iterator[tuple[str, str]]:
    """Systems and codes in an element: a CodeableConcept, a Coding, a code, or a list of them."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str):
            yield "", each
        elif each is not None:
            yield from _codes(each.get("coding"))
            if "code" in each:
                yield each.get("system", ""), each["code"]


def _column(text: str, where: str, units: Units) -> _Search | Callable[[Resource], object]:
    """What makes a column; InputError: its text is none of both."""
    if found := _SEARCH.fullmatch(text):
        return _Search(found[1], parse_qsl(found[2], keep_blank_values=True), where, units)
    if not (found := _OF_PATIENT.fullmatch(text)):
        meant = "Patient.gender, @2025-01-01 - Patient.birthDate, Observation?code=8480-6&date=lt2025-01-01"
        raise InputError(f"{where}: one as {meant} is meant")
    day, names = found[1], found[2].split(".")

    def told(person: Resource) -> object:
        value: Any = person
        for name in names:
            value = value[0] if isinstance(value, list) and value else value
            value = (value or {}).get(name)
        if day is None or not value:
            return value
        born = value + day[len(value) :]  # of a year alone, that day of it
        return int(day[:4]) - int(born[:4]) - (day[5:] < born[5:10])

    return told


class _Search:
    """A column by one of FHIR's searches: of observations the latest value, of all else yes or no.

    `_sort=date` takes the earliest, `_summary=count` counts. Codes are of the element of the parameter's name
    (`clinical-status`: clinicalStatus), `code` also of an observation's components. What has no date is in no
    search by date; of a month or a year, it is before a day if its first day is, and from it on if its last.
    """

    def __init__(self, kind: str, asked: list[tuple[str, str]], where: str, units: Units) -> None:
        self.kind, self._where, self._units = kind, where, units
        self._days, self._coded = list[tuple[str, str]](), list[tuple[str, set[tuple[str, str]]]]()
        for name, text in asked:
            if "date" in name:
                if not (found := _DAY.fullmatch(text)):
                    raise InputError(f"{where}: {name}: one as lt2025-01-01 or ge2025-01-01 is meant")
                self._days.append((found[1], found[2]))
            elif not name.startswith("_"):
                element = re.sub("-(.)", lambda letter: letter[1].upper(), name)
                self._coded.append((element, {each.rpartition("|")[::2] for each in text.split(",")}))
            elif (name, text) not in _RESULTS:
                raise InputError(f"{where}: {name}: {', '.join(map('='.join, _RESULTS))} are known")
        self._earliest, self._counts = _RESULTS[1] in asked, _RESULTS[0] in asked
        self._yes = not self._counts and kind != "Observation"
        self._unit: str | None = None
        self._values: dict[str, tuple[str, object]] = {}  # of each patient, with its date
        self._seen: dict[str, set[str]] = {}  # which resources

    def take(self, who: str, found: Resource, parts: _Parts, where: str) -> None:
        """A patient's resource with its parts' codes; InputError: of its value's unit nothing is said."""
        if found["resourceType"] != self.kind or (part := self._part(found, parts)) is None:
            return
        date = next((found[name] for name in found if _DATED.fullmatch(name)), "")
        date = date if isinstance(date, str) else date.get("start", "")
        if not all(_is_dated(date[:10], *each) for each in self._days):
            return
        if self._counts or self._yes:
            self._seen.setdefault(who, set()).add(found.get("id") or where)
        elif (value := self._value(part, where)) is not None:
            before = self._values.get(who, (date, None))[0]
            if date <= before if self._earliest else date >= before:
                self._values[who] = date, value

    def told(self, who: str) -> object:
        """What stands in a patient's row."""
        if self._counts:
            return len(self._seen.get(who, ()))
        return ("no", "yes")[who in self._seen] if self._yes else self._values.get(who, ("", None))[1]

    def _part(self, found: Resource, parts: _Parts) -> Resource | None:
        """The resource, or its component, that has all the codes; None: it has not."""
        part: Resource | None = found
        for name, wanted in self._coded:
            fits = parts if name == "code" else [(part, _both(found.get(name)))]
            if (part := next((each for each, codes in fits if not wanted.isdisjoint(codes)), None)) is None:
                return None
        return part

    def _value(self, part: Resource, where: str) -> object:
        """An observation's value in the study's unit; None: it has none."""
        value = next((each for name, each in part.items() if name.startswith("value")), None)
        if not isinstance(value, dict):
            return value
        if "coding" in value:
            return next((code for _, code in _codes(value)), None)
        if (number := value.get("value")) is None:
            return None
        unit = str(value.get("code") or value.get("unit"))
        if unit not in ((self._unit or unit,) if self._units is None else self._units):
            meant = self._where.replace(": columns", ": units", 1)
            raise InputError(f"{where}: has a unit of its own; {meant} says what each unit is worth")
        self._unit = unit
        return number if self._units is None else number * self._units[unit]


def _both(value: Any) -> set[tuple[str, str]]:
    """Codes with their system, and without, as a search may name them."""
    return {each for system, code in _codes(value) for each in ((system, code), ("", code))}


def _is_dated(date: str, how: str, day: str) -> bool:
    first, last = date + "-01-01"[len(date) - 4 :], date + "-12-31"[len(date) - 4 :]
    fits = {"lt": first < day, "le": first <= day, "gt": last > day, "ge": last >= day}
    return date != "" and fits[how]
