"""`pate-fed export`: a run for programs that know nothing of this package."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.errors import InputError

if TYPE_CHECKING:
    from pate_fed.learning.students.student import Student
    from pate_fed.report.run import Run

_DESCRIPTION = """\
Write a run for other programs: its student as ONNX, its figures, labels, epochs and spending as CSV files, or
what is in them for TensorBoard or MLflow. Figures from private votes are left out unless --analyst is
given."""


def add_export_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `export`."""
    export = add_command(
        commands, "export", "a run as ONNX, CSV, or for TensorBoard and MLflow", description=_DESCRIPTION
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
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {path}: no folder can be made there ({error.strerror})") from error
    try:
        yield
    except InputError:
        if not there and not any(path.iterdir()):
            path.rmdir()
        raise


def _write_folder(run: Run, path: Path, kind: str, *, analyst: bool) -> str:
    """Write a run in one of the forms that are a folder; what was written, in words."""
    if kind == "csv":
        from pate_fed.report.tables import write_csv_files

        return f"wrote {', '.join(write_csv_files(run, path, analyst=analyst))} in {path}"
    if kind == "mlflow":
        from pate_fed.report.mlflow import STORE, write_mlflow

        write_mlflow(run.result, path, name=run.path.resolve().name, analyst=analyst)
        return f"wrote {path / STORE}: mlflow ui --backend-store-uri sqlite:///{path / STORE}"
    from pate_fed.report.tensorboard import write_tensorboard

    write_tensorboard(run.result, path, analyst=analyst)
    return f"wrote {path}: tensorboard --logdir {path}"


def _write_onnx(run: Run, path: Path, *, own: str | None) -> None:
    from pate_fed.disk import check_file_path
    from pate_fed.format import VERSION, delta_text, epsilon_text
    from pate_fed.structure.parts import search_folder

    check_file_path(path, option="--onnx")
    if not (run.path / "student.pt").is_file():
        raise InputError(
            f"{run.path}: holds no student of images (student.pt); others are not written as ONNX"
        )
    study = run.result.study
    if own is not None:
        search_folder(Path.cwd())
    student: Student = run.student if own is None else run.student_from(own)
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
    student.export_onnx(path, about=about)
    print(
        f"wrote {path}: images uint8 (n, H, W, C) to probabilities float32 (n, classes), ε={about['epsilon']}"
    )
