"""Commands on runs that are there: `pate-fed ledger`, `report`, `compare` and `export`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import Parser, add_command, add_format_option, add_option, print_lines
from pate_fed.disk import check_file_path, write_result
from pate_fed.errors import InputError, naming_refusal
from pate_fed.format import VERSION, delta_text, epsilon_text, printable
from pate_fed.structure.parts import full_name, search_folder

if TYPE_CHECKING:
    from pate_fed.report.comparison import Comparison
    from pate_fed.report.run import Run


_DESCRIPTION = """\
Put finished runs side by side: ε and δ, labels, accuracies with their 95 % intervals, time, whether the
ledger passes its check, and the settings in which the runs differ."""

_EPILOG = "Example: pate-fed compare runs/first runs/second --html compare.html"


def add_compare_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `compare`."""
    compare = add_command(commands, "compare", "runs side by side", description=_DESCRIPTION, epilog=_EPILOG)
    compare.add_argument("runs", metavar="RUN_DIR", nargs="+", help="the --run-dir of a run; two or more")
    add_option(compare, "--html FILE", "write the page with pictures, too")
    add_option(compare, "--analyst", "with figures from private votes, which may not be published")
    add_format_option(compare)
    compare.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from pate_fed.report.comparison import Comparison, load_run, name_runs, render_comparison

    paths = [Path(each) for each in arguments.runs]
    if len(paths) < 2:
        raise InputError(f"{paths[0]}: one run alone; give two or more to compare")
    page = None if arguments.html is None else Path(arguments.html)
    if page is not None:
        check_file_path(page, option="--html")
    runs = [load_run(path, name=name) for path, name in zip(paths, name_runs(paths), strict=True)]
    comparison = Comparison(runs=tuple(runs), analyst=arguments.analyst)
    if page is not None:
        write_result(page, render_comparison(comparison, title="Comparison").encode())
    if arguments.format == "json":
        print(json.dumps(comparison.to_dict(), ensure_ascii=False))
    else:
        print_comparison(comparison)
        if page is not None:
            print(f"wrote {page}")
    return 0


def print_comparison(comparison: Comparison) -> None:
    """The tables and notes on standard output."""
    _print_table(comparison.header, comparison.rows)
    differing = comparison.differing_table
    if differing is not None:
        print("\nwhat differs")
        _print_table(*differing)
    else:
        print("\nall settings are the same")
    if comparison.notes:
        print()
        print_lines((f"note: {note}" for note in comparison.notes), indent=6)


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; on a terminal that is narrower, a block of lines for each row."""
    lines = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[place]) for row in lines) for place in range(len(header))]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) > get_terminal_size().columns:
        longest = max(map(len, lines[0][1:]))
        for row in lines[1:]:
            print(f"{row[0]}")
            for name, cell in zip(lines[0][1:], row[1:], strict=True):
                print(f"  {name:<{longest}}  {cell}")
        return
    for row in lines:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


_EXPORT_DESCRIPTION = """\
Write a run for other programs: its student as ONNX, its figures, labels, epochs and spending as CSV files, or
what is in them for TensorBoard or MLflow. Figures from private votes are left out unless --analyst is
given."""


def add_export_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `export`."""
    export = add_command(
        commands,
        "export",
        "a run as ONNX, CSV, or for TensorBoard and MLflow",
        description=_EXPORT_DESCRIPTION,
    )
    export.add_argument("run_dir", metavar="RUN_DIR", help="the --run-dir of a run")
    add_option(export, "--onnx FILE", "the student, for any runtime (pip install 'pate-fed[onnx]')")
    add_option(export, "--student MODULE:MAKE", "with --onnx: the code of your own network, which is run")
    add_option(export, "--csv DIR", "figures.csv, labels.csv, epochs.csv and spending.csv")
    add_option(export, "--tensorboard DIR", "an event file (pip install tensorboard)")
    add_option(export, "--mlflow DIR", "a run in DIR/mlflow.db (pip install mlflow)")
    add_option(export, "--analyst", "with figures from private votes, which may not be published")
    export.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from pate_fed.report.run import Run

    kinds = [kind for kind in ("onnx", "csv", "tensorboard", "mlflow") if getattr(arguments, kind)]
    if not kinds:
        raise InputError("nothing to export: give --onnx FILE, --csv DIR, --tensorboard DIR or --mlflow DIR")
    run, analyst = Run.load(arguments.run_dir), arguments.analyst
    for kind in kinds:
        path = Path(getattr(arguments, kind))
        if kind == "onnx":
            _write_onnx(run, path, own=arguments.student)
            continue
        with _folder(path, option=f"--{kind}"):
            print(_write_folder(run, path, kind, analyst=analyst))
    return 0


@contextmanager
def _folder(path: Path, *, option: str) -> Iterator[None]:
    """Make a folder; what made one and wrote nothing into it leaves none."""
    there = path.exists()
    with naming_refusal(f"{option} {path}: no folder can be made there"):
        path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except InputError:
        if not there and not any(path.iterdir()):
            path.rmdir()
        raise


def _write_folder(run: Run, path: Path, kind: str, *, analyst: bool) -> str:
    """Write a run in one of the forms that are a folder; what was written, in words."""
    if kind == "csv":
        from pate_fed.report.export import write_csv_files

        return f"wrote {', '.join(write_csv_files(run, path, analyst=analyst))} in {path}"
    if kind == "mlflow":
        from pate_fed.report.export import STORE, write_mlflow

        write_mlflow(run.result, path, name=run.path.resolve().name, analyst=analyst)
        return f"wrote {path / STORE}: mlflow ui --backend-store-uri sqlite:///{path / STORE}"
    from pate_fed.report.export import write_tensorboard

    write_tensorboard(run.result, path, analyst=analyst)
    return f"wrote {path}: tensorboard --logdir {path}"


def _write_onnx(run: Run, path: Path, *, own: str | None) -> None:
    from pate_fed.cli.predict import write_onnx_file
    from pate_fed.learning.students.class_sums import SumsStudent, holds_sums

    study, sums = run.result.study, run.path / "student.npz"
    table = getattr(study.terms, "table", None) if holds_sums(sums) else None
    if table is None and not (run.path / "student.pt").is_file():
        raise InputError(
            f"{run.path}: its student has no form as ONNX; networks and class sums of tables have"
        )
    if own is not None:
        search_folder(Path.cwd())
    about = {
        "epsilon": epsilon_text(run.epsilon),
        "delta": delta_text(run.delta),
        "protects": study.protects,
        "pate_fed": VERSION,
    }
    if study.assumptions:
        about["claimed"] = study.assumptions.warning
    if not study.noise_private:
        about["warning"] = study.noise
    student: Any = SumsStudent.load(sums) if table is not None else None
    if student is None:
        student = run.student if own is None else run.student_from(own)
    write_onnx_file(student, table, path, classes=table.classes if table else (), about=about)


def add_ledger_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `ledger`."""
    ledger = add_command(commands, "ledger", "read or check a run's privacy ledger")
    actions = ledger.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = add_command(actions, "show", "the ledger in words")
    add_format_option(show)
    show.set_defaults(run=_ledger_show)
    verify = add_command(
        actions,
        "verify",
        "recompute every ε, and check the hash chain, what lies beside it, and the run's seal",
        description="Recompute every ε from the ledger's rows, check its hash chain, and hold against it: "
        "labels.npz, and of metrics.json every ε, δ, teachers, classes and the counts of queries. "
        "All that the run left must be what was sealed at its end: a run without a seal ends with 6.",
    )
    add_format_option(verify)
    add_option(
        verify,
        "--public-key HEX",
        "the Ed25519 key that a run told at its end: it must have signed the seal, and every row of a "
        "coordinator's ledger",
    )
    add_option(verify, "--unsealed", "a run that was cut off, or is older than seals: its rows alone hold")
    add_option(
        verify, "--head HASH", "a row's hash noted before (verify's last line), which must be in the chain"
    )
    add_option(
        verify,
        "--aggregator NAME",
        "module:attribute of a mechanism of your own, whose code may be loaded to check what it claims",
    )
    verify.set_defaults(run=_ledger_verify)
    export = add_command(
        actions,
        "export",
        "the rows as other libraries' accountants take them",
        description="Write each row as events of dp-accounting (and so of Google's PLD), with the noise by "
        "the sensitivity, and beside it the ε of the study's caps by every accountant that is installed.",
    )
    add_option(export, "--dp-accounting", "as JSON: class names and fields of dp_accounting.dp_event")
    export.set_defaults(run=_ledger_export)
    for action in (show, verify, export):
        action.add_argument("run_dir", metavar="RUN_DIR", help="the --run-dir of a run")


def add_report_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `report`."""
    report = add_command(commands, "report", "write a run's report.html again")
    report.add_argument("run_dir", metavar="RUN_DIR", help="the --run-dir of a run")
    publishable = "write report-publishable.html, without what comes from private votes"
    add_option(report, "--publishable", publishable)
    papers = (
        "write model card, data protection impact assessment, ethics list and a board's page there instead"
    )
    add_option(report, "--papers DIR", papers)
    report.set_defaults(run=_report)


def _ledger_show(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy.ledger.report import describe, verify

    path = _ledger_path(arguments.run_dir)
    if arguments.format == "json":
        report = verify(path, aggregators=None)
        print(json.dumps({**report.to_dict(), "releases": report.releases()}))
    else:
        print_lines(describe(path))
    return 0


def _ledger_export(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy.ledger.report import verify

    if not arguments.dp_accounting:
        raise InputError("nothing to export: give --dp-accounting")
    report = verify(_ledger_path(arguments.run_dir), aggregators=None)
    print(json.dumps(report.dp_accounting(), indent=2))
    return 0


def _ledger_verify(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy.ledger.report import verify_run

    named = arguments.aggregator
    if named is not None:
        search_folder(Path.cwd())
    run_dir = Path(arguments.run_dir)
    report = verify_run(
        run_dir,
        public_key=arguments.public_key,
        head=arguments.head,
        aggregators=() if named is None else (full_name(named, "aggregator"),),
        rewritten={name: partial(_page, run_dir, name) for name in (_REPORT, _PUBLISHABLE)},
    )
    if arguments.format == "json":
        print(json.dumps(report.to_dict()))
    else:
        print_lines(report.lines())
    report.require_checked()
    if not arguments.unsealed:
        report.require_sealed()
    return 0


_REPORT, _PUBLISHABLE = "report.html", "report-publishable.html"


def _page(run_dir: Path, name: str) -> bytes:
    """The report of that name, as `pate-fed report` writes it."""
    from pate_fed.report.html import render_report
    from pate_fed.report.log import read_result

    return render_report(read_result(run_dir), publishable=name == _PUBLISHABLE).encode()


def _ledger_path(run_dir: str) -> Path:
    path = Path(run_dir) / "ledger.sqlite"
    if not path.is_file():
        raise InputError(f"{run_dir}: holds no ledger.sqlite; give the --run-dir of a run")
    return path


def _report(arguments: argparse.Namespace) -> int:
    from pate_fed.report.comparison import BROKEN, NO_LEDGER, ledger_state

    run_dir = Path(arguments.run_dir)
    if arguments.papers:
        from pate_fed.report.papers import write_papers
        from pate_fed.report.run import Run

        with _folder(Path(arguments.papers), option="--papers"):
            names = write_papers(Run.load(run_dir), Path(arguments.papers))
        print(f"wrote {', '.join(names)} in {arguments.papers}")
    else:
        path = run_dir / (_PUBLISHABLE if arguments.publishable else _REPORT)
        write_result(path, _page(run_dir, path.name))
        print(f"wrote {path}")
    said = {
        NO_LEDGER: "holds no ledger.sqlite, so nothing proves the report's ε",
        BROKEN: "its ledger does not pass its check, so do not rely on the report's ε; pate-fed ledger "
        "verify says what is wrong",
    }.get(ledger_state(run_dir))
    if said is not None:
        print(f"warning: {run_dir}: {said}", file=sys.stderr)
    return 0
