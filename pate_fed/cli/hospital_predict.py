"""`pate-fed hospital predict`: the student that came to a hospital, and what it says of records there."""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.cli.hospital_log import STATE_DIR_HELP, agreed_terms, identity_of, last_settings, state_dir_of
from pate_fed.cli.parser import DECIMAL, add_command, add_option, print_lines
from pate_fed.cli.predict import (
    MOST_NOTICE,
    Predictor,
    predictor_of,
    with_pictures,
    withdrawn,
    write_onnx_file,
)
from pate_fed.data import InputSpec, Schema, read_pool
from pate_fed.data.csv_file import in_chunks
from pate_fed.data.own_columns import OwnColumns
from pate_fed.data.schema import MISSING
from pate_fed.data.table import ColumnReader, TableReader
from pate_fed.disk import check_file_path, check_there, read_file, write_private, write_result
from pate_fed.errors import InputError, naming_refusal
from pate_fed.format import counted, delta_text, epsilon_text, printable

if TYPE_CHECKING:
    from pate_fed.identity.bundle import Bundle

_AT_ONCE = 5000  # inputs


def add_predict_action(actions: argparse._SubParsersAction[Any]) -> None:
    """Register `hospital predict`."""
    predict = add_command(
        actions,
        "predict",
        "the study's student, and what it says of records here",
        description="Checks the student that came at the study's end with the key in this hospital's "
        "admission, and shows what it is. With RECORDS it writes each one's probabilities and class into a "
        "new CSV file, which only this user can read. Nothing is sent; it works offline.",
    )
    predict.add_argument("state_dir", metavar="STATE_DIR|STUDY", help=STATE_DIR_HELP)
    predict.add_argument(
        "records",
        metavar="RECORDS",
        nargs="?",
        help="the records, in files as in the study; where they have labels the accuracy is shown",
    )
    add_option(predict, "--out FILE", "the CSV file (default: RECORDS.predictions.csv)")
    add_student_options(predict)
    add_option(
        predict, "--withdrawn FILE", "the coordinator's notice that it withdraws the student; it is kept"
    )
    papers = "write model card, data protection impact assessment, ethics list and a board's page there"
    add_option(predict, "--papers DIR", f"{papers}, of what terms and student say")
    add_option(predict, "--onnx FILE", "write it for any runtime, too (pip install 'pate-fed[onnx]')")
    predict.set_defaults(run=_predict)


def add_student_options(action: argparse.ArgumentParser) -> None:
    """Add the options of both actions that ask the study's student about records."""
    add_option(action, "--decimal", DECIMAL, choices=("point", "comma"))
    add_option(action, "--device NAME", "cpu, cuda or auto, of a network", default="cpu")
    add_option(action, "--dir DIR", "the folder of its keys and admission (default: as the hospital ran)")


def student_of(state_dir: Path, given: str | None) -> tuple[Bundle, str]:
    """The student that came, checked with the keys in the folder `given`, and its file's name."""
    from clients.log import read_student
    from pate_fed.identity.bundle import BUNDLE_FILE

    if not (state_dir / BUNDLE_FILE).exists():
        raise InputError(
            f"{state_dir}: no student came; a coordinator with keys sends it when its study ends with success"
        )
    identity = identity_of(state_dir, given)
    if identity is None:
        raise InputError(f"{state_dir}: no keys to check a student with; give --dir with this hospital's")
    return read_student(state_dir, identity), str(state_dir / BUNDLE_FILE)


def _predict(arguments: argparse.Namespace) -> int:
    state_dir = state_dir_of(arguments.state_dir)
    bundle, where = student_of(state_dir, arguments.dir)
    if arguments.withdrawn is not None:
        _keep_notice(Path(arguments.withdrawn), bundle, state_dir)
    print_lines(withdrawn(bundle, state_dir))
    print_lines(map(printable, student_lines(bundle)))
    if arguments.papers is not None:
        names = _write_papers(bundle, state_dir, Path(arguments.papers))
        print_lines([printable(f"wrote {', '.join(names)} in {arguments.papers}")])
    if arguments.onnx is not None:
        facts, student = bundle.facts, bundle.student(where)
        about = {"epsilon": epsilon_text(facts.epsilon, unbounded="unbounded"), "protects": facts.protects}
        about |= {"delta": delta_text(facts.delta), "licence": facts.licence, "terms": facts.terms_digest}
        write_onnx_file(student, facts.table, Path(arguments.onnx), classes=facts.classes, about=about)
    if arguments.records is not None:
        model = predictor_of(bundle, where=where, device=arguments.device)
        print_lines(map(printable, _ask(bundle, model, arguments)))
    return 0


def _write_papers(bundle: Bundle, state_dir: Path, folder: Path) -> list[str]:
    """The papers that `pate-fed report --papers` writes, of the terms and the bundle; the files' names."""
    from pate_fed.config.backend import PROCESSES
    from pate_fed.config.sections import Queries
    from pate_fed.kinds.terms import worst_epsilon
    from pate_fed.report.papers import write_papers_of
    from pate_fed.report.result import Outcome, PrivacyFigures, RunResult, StudyRecord

    facts, terms = bundle.facts, agreed_terms(state_dir)
    if terms is None or terms.digest != facts.terms_digest:
        raise InputError(f"{state_dir}: the study's terms are gone, and papers tell what they say")
    fixed = terms.ledger_terms(
        noise=f"{'not ' * facts.private}seeded, as the student's bundle says", private=facts.private
    )
    study = StudyRecord(
        terms=terms,
        dataset="images" if terms.table is None else "table",
        queries=Queries(),
        student=facts.kind,
        partition=None,
        backend=PROCESSES,
        inputs="images" if terms.table is None else "rows",
        protects=facts.protects,
        noise=fixed.noise,
        noise_private=fixed.private,
        coordinator=fixed.coordinator.kind,
        coordinator_sees=fixed.coordinator.text(),
    )
    figures = PrivacyFigures(student=facts.epsilon, coordinator=worst_epsilon(terms)[1])
    outcome = Outcome(
        status="success", privacy=figures, ledger_head=facts.ledger_head, sealed_by=bundle.signer
    )
    with naming_refusal(f"--papers {folder}: no folder can be made there"):
        folder.mkdir(parents=True, exist_ok=True)
    result = RunResult(study=study, outcome=outcome, whole=False)
    return write_papers_of(result, folder, student=bundle.digest)


def _keep_notice(path: Path, bundle: Bundle, state_dir: Path) -> None:
    from pate_fed.identity.bundle import Withdrawal

    check_there(path, option="--withdrawn")
    with naming_refusal(f"--withdrawn {path}: cannot be read, or kept in {state_dir}"):
        content = read_file(path, most=MOST_NOTICE)
        Withdrawal.read(content, bundle, where=str(path))
        write_private(state_dir / Withdrawal.name(bundle.digest), content)


def _ask(bundle: Bundle, model: Predictor, arguments: argparse.Namespace) -> Iterator[str]:
    """Ask the student about the records, write its answers, and say what there is to say of them."""
    path, table = Path(arguments.records), bundle.facts.table
    check_there(path, option="RECORDS")
    beside = Path(os.path.abspath(path))  # also of "."
    out = beside.with_name(f"{beside.stem}.predictions.csv") if arguments.out is None else Path(arguments.out)
    _require_new(out)
    if table is None:
        asked = _images(path, model)
    else:
        own, told = settings_for(path, table, state_dir_of(arguments.state_dir))
        if told:
            yield told
        asked = _rows(path, table, decimal_of(arguments), bundle.covered, own)
    content, classes = _answers(asked, model)
    _require_new(out)  # all this while another may have written it
    write_result(out, content)
    yield f"{path}: {counted(len(classes), model.unit)}{f' ({asked.read_as})' if asked.read_as else ''}"
    yield from (f"warning: {each}" for each in asked.odd)
    yield f"written: {out}, which this user alone can read"
    digest = hashlib.sha256(content).hexdigest()
    yield f"sha256 {digest}: that of another site which asked about the same records is the same"
    evaluation = model.evaluation
    evaluation.add(classes, asked.truth, asked.truth[:0])
    if right := evaluation.lines():
        yield from right
        yield "shown here alone; records that had a part in the study may flatter it"


def _require_new(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise InputError(f"--out {path}: is there already, and stays; give the name of a new file")
    check_file_path(path, option="--out")


def student_lines(bundle: Bundle) -> Iterator[str]:
    """What the student is, for whom, and what it promises."""
    facts = bundle.facts
    of = "" if facts.hospitals is None else f", of {counted(facts.hospitals, 'hospital')}"
    yield f"the student of the study {facts.study!r}: {facts.kind}{of}"
    yield "signed by the study's coordinator, whose key the authority signed in this hospital's admission"
    bound = "without a bound" if facts.epsilon is None else f"ε={epsilon_text(facts.epsilon)}"
    yield f"{bound} at δ={delta_text(facts.delta)} for {facts.protects}, against all who see it"
    if not facts.private:
        yield "NOT PRIVATE: the noise was seeded"
    if facts.claimed:
        yield f"NOT PROVEN: {facts.claimed}"
    yield f"may be used by: {facts.licence or 'not stated'}"
    stated = (("purpose", facts.purpose), ("retention", facts.retention))
    yield from (f"{name}: {text}" for name, text in stated if text)
    target = None if facts.table is None else facts.table.target_range
    if facts.table is not None and facts.table.labels:
        yield f"labels, each with what yes means: {', '.join(facts.table.label_names)}"
    elif facts.table is not None and target is not None:
        yield f"{facts.table.label}: a number from {target[0]:.15g} to {target[1]:.15g}"
    else:
        yield f"classes: {', '.join(facts.classes) or len(facts.classes)}"
    digests = (("terms", facts.terms_digest), ("ledger", facts.ledger_head), ("this file", bundle.digest))
    yield from (f"sha256 of {name}: {digest}" for name, digest in digests)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """What the student is asked about: `parts` are files with their inputs, `head` what names an input.

    Each input has its `names`, for the columns of `head`, and its true class, -1: unknown. `odd` are
    sentences on what the study's public inputs do not cover.
    """

    parts: list[tuple[Path, NDArray[Any]]]
    head: tuple[str, ...]
    names: list[tuple[str | int, ...]]
    truth: NDArray[np.int64]
    odd: tuple[str, ...] = ()
    read_as: str = ""


def decimal_of(arguments: argparse.Namespace) -> str | None:
    """How numbers are written in a file: as is said, else as was said of this hospital's records."""
    given: str | None = arguments.decimal
    settings = last_settings(state_dir_of(arguments.state_dir))
    return given if given is not None or settings is None else settings.decimal


def settings_for(path: Path, table: Schema, state_dir: Path) -> tuple[OwnColumns | None, str]:
    """A file's own settings where it has some, None; else those of this hospital's records, told in a line.

    A copy, or a new export, is written as those are: read as it is, its units could be others.
    """
    own, settings = OwnColumns.path_of(path), last_settings(state_dir)
    data = path if settings is None else Path(settings.data)
    kept = OwnColumns.path_of(data)
    if path.suffix == ".npz" or os.path.lexists(own) or not kept.exists():
        return None, ""
    found = OwnColumns.beside(data, table.in_one_form())
    files = tuple(str(data.parent / each) for each in found.files)
    told = f"read with the settings of this hospital's own records ({kept}); an empty {own.name} beside it"
    return replace(found, files=files), f"{path}: {told} would have it read as it is"


def _rows(
    path: Path, table: Schema, decimal: str | None, covered: NDArray[Any] | None, own: OwnColumns | None
) -> _Asked:
    """A table's rows by their numbers in the file; a value of no category counts as missing."""
    unknown, numbers = Counter[str](), list[int]()
    if path.suffix == ".npz":
        rows = read_pool(path, InputSpec(classes=table.class_names, schema=table))
        numbers = list(range(len(rows.labels)))
    else:
        reader = TableReader(path, table, decimal=decimal, own=own)
        reader.require_columns(labelled=False)
        choices = [column for column in reader.columns if column.values and column.place is not None]
        for chunk in in_chunks(reader.records()):
            for number, cells in chunk:
                for column in choices if len(cells) == len(reader.header) else ():
                    try:
                        column.read(cells[column.place or 0], number)
                    except InputError:
                        unknown[column.name] += 1
                        cells[column.place or 0] = _lacking(column)
            reader.add(chunk)
            numbers += [number for number, _ in chunk]
        rows = reader.rows()
    odd = list(_beyond(rows.inputs, table, covered))
    if unknown:
        values = counted(unknown.total(), "value")
        odd.append(f"{values} of no category of the study, taken as missing: {_by_column(unknown)}")
    return _Asked(
        parts=[(path, rows.inputs)],
        head=("row",),
        names=[(number,) for number in numbers],
        truth=rows.labels,
        odd=tuple(odd),
        read_as=rows.read_as,
    )


def _lacking(column: ColumnReader) -> str:
    """A text that is a missing value there, also where the file's settings give empty cells a meaning."""
    return next(each for each in sorted(MISSING) if math.isnan(column.read(each, 0)))


def _beyond(inputs: NDArray[Any], table: Schema, covered: NDArray[Any] | None) -> Iterator[str]:
    """A sentence on rows with what no public input has: numbers beyond theirs, values that none has."""
    if covered is None:
        return
    outside, at, found = (inputs < covered[0]) | (inputs > covered[1]), 0, Counter[str]()
    for name, values in table.columns:
        width = max(1, len(values))
        found[name] = int(outside[:, at : at + width].any(axis=1).sum())
        at += width
    if found.total():
        rows = f"{int(outside.any(axis=1).sum()):,} of {counted(len(inputs), 'row')}"
        what = (
            "outside of the declared ranges" if table.ranges else "with what no public input of the study has"
        )
        yield f"{rows} {what}, where it only guesses: {_by_column(found)}"


def _by_column(found: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in found.most_common() if count)


def _images(path: Path, model: Predictor) -> _Asked:
    parts = [(file, model.read(file)) for file in with_pictures([path])]
    names, classes = list[tuple[str | int, ...]](), len(model.class_names)
    for file, images in parts:
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        names += [(name, number) for number in range(len(images))]
    truth = [model.truth(file, len(images), classes) for file, images in parts]
    return _Asked(parts=parts, head=("file", "image"), names=names, truth=np.concatenate(truth))


def _answers(asked: _Asked, model: Predictor) -> tuple[bytes, list[Any]]:
    """The CSV file, and each input's class, or its number, or its labels' probabilities of yes."""
    classes, text, names = list[Any](), io.StringIO(), iter(asked.names)
    lines = csv.writer(text, lineterminator="\n")
    label = "predicted"
    while label in model.class_names:
        label += "_"
    numeric = model.target_range is not None
    if model.labels:
        lines.writerow([*asked.head, *model.labels])
    else:
        lines.writerow([*asked.head, *(() if numeric else model.class_names), label])
    for path, inputs in asked.parts:
        for row, told in model.answers(inputs, path, at_once=_AT_ONCE):
            classes.append(told)
            if model.labels:
                shown = [f"{share:.6f}" for share in told]
            elif numeric:
                shown = [f"{told:.6g}"]
            else:
                shown = [*(f"{share:.6f}" for share in row), model.class_names[told]]
            lines.writerow([*next(names), *shown])
    return text.getvalue().encode(), classes
