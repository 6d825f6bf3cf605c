"""`pate-fed study new`: a commented study.toml, of a table with the columns that CSV files have."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import DECIMAL, add_command, add_option
from pate_fed.errors import InputError
from pate_fed.format import counted, printable

if TYPE_CHECKING:
    from pate_fed.data.infer import InferredSchema, Text
    from pate_fed.data.schema import Schema

_FEW = 5  # rows: a value in fewer is asked about by itself, as it may tell of a patient


def add_new_action(actions: Any) -> None:
    """Register `study new`."""
    new = add_command(actions, "new", "write a commented study.toml, from CSV files where there are some")
    text = "the parties' records, or a hospital's own: the columns are read from them"
    new.add_argument("--csv", metavar="FILE", nargs="+", default=[], help=text)
    add_option(new, "--pool FILE", "the public inputs (default pool.csv beside the study)")
    deal = "try it with one file: its rows go at random to N parties, a third of them into the pool"
    add_option(new, "--deal N", deal)
    add_option(new, "--decimal", DECIMAL, choices=("point", "comma"))
    add_option(new, "--label COLUMN", "the column of the class (default: found by its name, else the last)")
    add_option(
        new,
        "--patient COLUMN",
        "the column that is equal for one patient's rows (default: found by its name)",
    )
    agreed = (
        "texts of records that may stand in the study, as an error lists them: 'column: value', one a line"
    )
    add_option(new, "--yes-to FILE", agreed)
    add_option(new, "--out FILE", "where it is written", default="study.toml")
    new.set_defaults(run=_study_new)


def _study_new(arguments: argparse.Namespace) -> int:
    from pate_fed.config.template import study_template

    out = Path(arguments.out)
    if out.exists():
        raise InputError(f"--out {out}: is there already; give another name")
    if not arguments.csv:
        for option in ("pool", "deal", "label", "patient", "yes_to"):
            if getattr(arguments, option) is not None:
                raise InputError(
                    f"--{option.replace('_', '-')} {getattr(arguments, option)}: goes with --csv FILE"
                )
        _write(out, study_template(name=out.stem))
        print(f"wrote {out}: every setting with its default; try it: flower-simulation --config {out}")
        return 0
    return _from_csv(arguments, out)


def _from_csv(arguments: argparse.Namespace, out: Path) -> int:
    from pate_fed.config.template import study_template
    from pate_fed.data.infer import infer_schema

    files = [Path(name) for name in arguments.csv]
    found = infer_schema(files, label=arguments.label, patient=arguments.patient, decimal=arguments.decimal)
    for line in found.read_as:
        print(line)
    schema, pool = found.schema, Path(arguments.pool or out.parent / "pool.csv")
    public = pool if arguments.deal is None and pool.is_file() else None
    _agree(_not_public(found.texts, public), arguments.yes_to)
    if arguments.deal is not None:
        files, pool = _deal(arguments, out, schema)
    data: dict[str, Any] = {"dataset": "table", "pool": _beside(pool, out)}
    if len(files) > 1:
        data["private"] = [_beside(path, out) for path in files]
    categories = [name for name, values in schema.columns if values]
    notes = _notes(categories)
    clients = len(files) if len(files) > 1 else None
    text = study_template(data=data, schema=schema, num_clients=clients, notes=notes, name=out.stem)
    _write(out, text)
    numbers = len(schema.columns) - len(categories)
    print(f"wrote {out}: {counted(numbers, 'column')} of numbers, {len(categories)} of categories")
    print(f"label: {schema.label} ({', '.join(schema.classes)}); patient: {schema.patient or 'none named'}")
    for name, why in found.left_out:
        print(f"left out: {printable(name)} {why}")
    for line in _about_patients(found):
        print(line)
    if clients is None:
        print("say in [parties] how many hospitals there are: num_clients")
        print(f"or try it on this file alone: pate-fed study new --csv {files[0]} --deal 4 --out try.toml")
    if not pool.is_file():
        print(f"put the public inputs there: {pool}, the same columns, the label may be missing")
    if clients is not None:
        print(f"try it on these files: flower-simulation --config {out}")
    return 0


def _not_public(texts: Sequence[Text], pool: Path | None) -> list[Text]:
    """The texts that the public pool does not hold, by whose file anyone may know them."""
    from pate_fed.data.csv_file import CsvFile
    from pate_fed.data.schema import number_in

    if pool is None:
        return list(texts)
    file = CsvFile(pool)
    known: dict[str, set[str | float]] = {name: set() for name in file.header}
    for _, cells in file.rows(plain=True):
        for name, text in zip(file.header, cells, strict=False):
            number = number_in(text)
            known[name].add(text if number is None else number)

    def is_public(text: Text) -> bool:
        if text.value is None:
            return text.column in known
        number = number_in(text.value)
        return (text.value if number is None else number) in known.get(text.column, ())

    return [text for text in texts if not is_public(text)]


def _agree(texts: Sequence[Text], agreed: str | None) -> None:
    """A yes to each text of records that would stand in the study: from a file, or at the terminal.

    Raises:
        InputError: the answer is no, or nobody can be asked here.
    """
    known: set[str] = set()
    if agreed is not None:
        try:
            known = {line.strip() for line in Path(agreed).read_text(encoding="utf-8-sig").splitlines()}
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--yes-to {agreed}: cannot be read as a text in UTF-8") from error
    left = [text for text in texts if _in_a_line(text) not in known]
    if not left:
        return
    if not sys.stdin.isatty():
        listed = "\n".join(_in_a_line(text) for text in left)
        raise InputError(
            "nothing was written: these names and values of records would stand in the study, which leaves "
            "the house, and the public pool does not hold them. Mend the files where one tells of a patient; "
            f"put the others into a file, one a line as here, and give --yes-to FILE:\n{listed}"
        )
    print("These are not in the public pool, and would stand in the study, which leaves the house.")
    names = [text for text in left if text.value is None]
    often = [text for text in left if text.value is not None and text.rows >= _FEW]
    rare = [[text] for text in left if text.value is not None and text.rows < _FEW]
    for group in ([names] if names else []) + ([often] if often else []) + rare:
        for text in group:
            print(f"  {_in_a_line(text)}" + (f"   ({counted(text.rows, 'row')})" if text.rows else ""))
        print(
            f"Type yes if {'it' if len(group) == 1 else 'all of them'} may be known to all: ",
            end="",
            flush=True,
        )
        if sys.stdin.readline().strip().lower() != "yes":
            raise InputError("nothing was written; mend the files, or leave the column out of them")


def _in_a_line(text: Text) -> str:
    """As `--yes-to` has it: a value may hold line breaks."""
    return " ".join(str(text).split())


def _about_patients(found: InferredSchema) -> list[str]:
    """What may be wrong about the patient's column: on it rests what ε protects."""
    if found.cases:
        return [
            f"{found.schema.patient} seems to number cases: a patient with several counts as several; if a "
            "column names patients, give it as --patient"
        ]
    return [
        f"WARNING: values of {name} repeat: is this the patient? Then give --patient {shlex.quote(name)}; "
        "else rows of one patient are not kept together, and ε holds for each row by itself"
        for name in found.perhaps_patients
    ]


def _deal(arguments: argparse.Namespace, out: Path, schema: Schema) -> tuple[list[Path], Path]:
    """The files of `--deal`, in a folder beside the study."""
    from pate_fed.data.deal import deal_csv

    if len(arguments.csv) != 1 or arguments.pool is not None:
        raise InputError(f"--deal {arguments.deal}: goes with one --csv FILE, and makes the pool of it")
    folder = out.parent / f"{out.stem}-files"
    dealt = deal_csv(
        Path(arguments.csv[0]), folder, parties=arguments.deal, schema=schema, decimal=arguments.decimal
    )
    parties = counted(len(dealt.private), "file")
    print(f"dealt out the rows of {arguments.csv[0]}: {parties} of parties and {dealt.pool}")
    if dealt.left_out:
        lacking = "its label" if schema.patient is None else "its label or patient"
        rows = counted(len(dealt.left_out), "row")
        print(f"left out: {rows} without {lacking}, the first of them row {dealt.left_out[0]}")
    return list(dealt.private), dealt.pool


def _notes(categories: Sequence[str]) -> tuple[str, ...]:
    """What stands above the columns; a column that is left out is named on the terminal alone."""
    notes = [
        "The columns that every file has. A hospital's file may have others: they are never read.",
        "Another study may be meant than these files show: look at the label, the classes and each column.",
    ]
    if categories:
        notes.append(f"The values of {', '.join(categories)} were read from the files, and agreed to.")
    return tuple(notes)


def _beside(path: Path, out: Path) -> str:
    """The file's name as a study at `out` gives it: from there where it lies below, else whole."""
    folder, whole = out.absolute().parent, Path(os.path.abspath(path))
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror})") from error
