"""`pate-fed hospital check`: a hospital's table beside its study, before anything is sent.

What it finds is for this hospital's own terminal. What it says yes to is written into settings beside its
file, which is read with them from then on, and stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pate_fed.cli.doctor.records import WantedRecords
from pate_fed.cli.parser import print_lines
from pate_fed.cli.terms import open_pool, own_pool, read_offer
from pate_fed.config.study import read_study
from pate_fed.data import read_pool
from pate_fed.data.own_columns import OwnColumns, quoted
from pate_fed.data.profile import ColumnProfile, Note, TableProfile, examine
from pate_fed.data.schema import number_in
from pate_fed.disk import check_there
from pate_fed.errors import InputError
from pate_fed.format import counted, printable, share_text
from pate_fed.privacy.protection import PATIENT_UNIT
from pate_fed.structure import to_plain

_NOT_COMPARED = (
    "NOT compared with the public inputs, which have not come: another unit would not be noticed yet; join "
    "does so before its first answer, and --pool FILE does it here"
)
_NAME, _HERE, _THERE = 16, 26, 27  # widths on a terminal of 80 columns


def check(arguments: argparse.Namespace) -> int:
    """Show what a table holds beside what its study wants; 2 where something must be mended, else 0."""
    data = Path(arguments.data)
    check_there(data, option="DATA")
    if not data.is_file():
        raise InputError(f"DATA {data}: no file; the records of a table are a CSV file")
    wanted, pool = _wanted(arguments)
    assert wanted.spec.schema is not None
    schema, by_patient = wanted.spec.schema.in_one_form(), wanted.unit == PATIENT_UNIT
    look = partial(examine, data, schema, decimal=arguments.decimal, pool=pool, by_patient=by_patient)
    own = before = OwnColumns.beside(data, schema.in_one_form())
    if arguments.join is not None:
        more = (os.path.relpath(each, data.parent) for each in arguments.join)
        own = replace(own, files=tuple(dict.fromkeys((*own.files, *more))))
    for name in arguments.missing or ():
        own = own.changed(name, {"missing": True})
    own, asked = own.held_to(schema, where="--join, --missing"), set[str]()
    while True:
        found, shown = look(own=own), own
        for each in found.proposals:
            values = {**dict(schema.columns), **dict(schema.outcomes)}.get(each.column, ())
            if str(each) not in asked and (change := _agreed(each, found, values, arguments)):
                name = change.get("name")
                if name is not None and any(other.name == name for other in own.columns.values()):
                    print(f"  {each.column}: that column is another one's already; nothing is changed")
                    continue
                own = replace(own, **change) if "leave_out" in change else own.changed(each.column, change)
            asked.add(str(each))
        if own is shown:
            break
    written = own.write(data, before=before) if own != before else None
    compared = pool is not None or bool(schema.ranges)
    if arguments.format == "json":
        told = {"fits": found.fits, "compared": compared, **to_plain(found)}
        del told["unread"]  # what stands there is nobody's business
        for each in told["proposals"]:
            del each["code"]
        print(json.dumps(told, indent=1))
    else:
        print_lines(map(printable, _lines(data, found, written)), indent=4)
        if not compared:
            print_lines([_NOT_COMPARED])
    return 0 if found.fits else InputError.exit_code


def _wanted(arguments: argparse.Namespace) -> tuple[WantedRecords, NDArray[Any] | None]:
    """What the study reads, and the public inputs where a copy is at hand."""
    path, inputs = Path(arguments.study or "."), None
    pool = None if arguments.pool is None else Path(arguments.pool)
    if path.suffix == ".toml":
        wanted, named = WantedRecords.by_study(path), read_study(path).data.pool
        pool = pool or (Path(named) if named and Path(named).is_file() else None)
        inputs = None if pool is None else read_pool(pool, wanted.spec).inputs
    else:
        terms, admission = read_offer(path)
        wanted, pool = WantedRecords.by_terms(terms), pool or own_pool(terms, admission)
        inputs = None if pool is None else open_pool(pool, terms)
    if wanted.spec.schema is None:
        raise InputError(
            f"--study {path}: a study of no table; `pate-fed hospital rehearse` reads its records"
        )
    return wanted, inputs


def _agreed(
    each: Note, found: TableProfile, values: Sequence[str], arguments: argparse.Namespace
) -> Mapping[str, Any]:
    """What is said yes to: a proposed change, a column's name, a code's value, or that it is missing."""
    if arguments.accept_proposals or arguments.format == "json" or not sys.stdin.isatty():
        offered = "leave_out" not in each.change and None not in each.change.values()
        return each.change if arguments.accept_proposals and offered else {}  # the rest is a person's to say
    print_lines([printable(str(each))])
    if None in each.change.values():
        asks = "a factor, 1 where the unit is the study's, or no"
    elif each.change:
        asks = "yes or no"
    elif each.code is not None:
        asks = f"{'one of them' if values else 'a number'}, missing, or no"
    else:
        print_lines([printable(f"  columns that nobody reads: {', '.join(found.unread) or 'none'}")])
        asks = "its name there, or no" if each.mend else "its name there, missing, or no"
    try:
        answer = input(f"  Type {asks}: ").strip()
    except EOFError:
        return {}
    missing, number = answer.lower() == "missing", number_in(answer)
    if None in each.change.values():
        if number is not None and number > 0:
            return {"factor": number}
    elif each.change:
        if answer.lower() in ("y", "yes"):
            return each.change
    elif each.code is not None:
        if missing or answer in values or (not values and number is not None):
            return {"map": {each.code: "" if missing else answer}}
    elif answer in found.unread:
        return {"name": answer}
    elif missing and not each.mend:
        return {"missing": True}
    print("  nothing is changed")
    return {}


def _lines(data: Path, found: TableProfile, written: Path | None) -> Iterator[str]:
    of = "" if found.patients is None else f" of {counted(found.patients, 'patient')}"
    read_as = f"; read as {found.read_as}" if found.read_as else ""
    yield f"{data.name}: {counted(found.records, 'record')}{of}{read_as}"
    yield "For this terminal alone: nothing was sent."
    yield ""
    yield f"{'COLUMN':<{_NAME}} MISSING  {'HERE':<{_HERE}} IN THE STUDY"
    for column in found.columns:
        missing = share_text(column.missing / max(1, found.records))
        line = (
            f"{column.name[:_NAME]:<{_NAME}} {missing:>7}  {_held(column):<{_HERE}} {_wanted_there(column)}"
        )
        yield line.rstrip()
    for heading, notes in (
        ("TO MEND", [note for note in found.notes if note.mend]),
        ("WORTH A LOOK", [note for note in found.notes if not note.mend]),
        (
            "PROPOSED: a yes on a terminal takes it",
            [each for each in found.proposals if any(each.change.values())],
        ),
    ):
        if notes:
            yield from ("", heading, *(f"  {each}" for each in notes))
    yield ""
    if written is not None:
        yield f"written: {written}, which is read with {data.name} from now on; that file is as it was"
        if (bak := written.with_name(f"{written.name}.bak")).exists():
            yield f"an earlier one: {bak}"
    yield (
        "fits the study"
        if found.fits
        else f"does not fit yet: mend it there, or say in {OwnColumns.path_of(data)} how to read it"
    )
    lacking = [each.column for each in found.notes if each.mend and "no such column" in each.text]
    if lacking:
        yield from (f"[columns.{quoted(lacking[0], key=True)}]", 'name = "what the file calls it"')


def _held(column: ColumnProfile) -> str:
    """What the hospital's file holds."""
    if column.kind == "number":
        return f"{column.bars} {_between(column.values)}".strip()
    return _some([f"{name} {count:,}" for name, count in column.values.items() if count], _HERE)


def _wanted_there(column: ColumnProfile) -> str:
    """What the study wants, and the pool holds."""
    lacks = f", {share_text(column.pool_missing)} missing" if column.pool_missing else ""
    told = [f"{name} {share_text(share)}" for name, share in column.pool.items()] or [*column.values]
    text = _between(column.pool) if column.kind == "number" else _some(told, _THERE - len(lacks))
    return (text or column.kind) + lacks


def _between(values: Mapping[str, float]) -> str:
    return f"{values['low']:.5g} to {values['high']:.5g}" if values else ""


def _some(texts: Sequence[str], width: int) -> str:
    """As many of the texts as there is room for, and how many more there are."""
    for count in range(len(texts), 0, -1):
        more = f", {len(texts) - count} more" if count < len(texts) else ""
        if len(told := ", ".join(texts[:count]) + more) <= width:
            return told
    return counted(len(texts), "value") if texts else ""
