"""`pate-fed export`: a run for programs that know nothing of this package."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.errors import InputError

if TYPE_CHECKING:
    from pate_fed.report.run import Run

__all__ = ["add_export_command"]

_DESCRIPTION = """\
Write a run for other programs: its student as ONNX, its figures, labels, epochs and spending as CSV files, or
what is in them for TensorBoard. Figures from private votes are left out unless --analyst is
given."""


def add_export_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `export`."""
    export = add_command(
        commands, "export", "a run as ONNX, CSV, or for TensorBoard", description=_DESCRIPTION
    )
    export.add_argument("run_dir", metavar="RUN_DIR", help="the --run-dir of a run")
    add_option(export, "--onnx FILE", "the student, for any runtime (pip install 'pate-fed[onnx]')")
    add_option(export, "--csv DIR", "figures.csv, labels.csv, epochs.csv and spending.csv")
    add_option(export, "--tensorboard DIR", "an event file (pip install tensorboard)")
    add_option(export, "--analyst", "with figures from private votes, which may not be published")
    export.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from pate_fed.report.run import Run

    kinds = [kind for kind in ("onnx", "csv", "tensorboard") if getattr(arguments, kind)]
    if not kinds:
        raise InputError("nothing to export: give --onnx FILE, --csv DIR or --tensorboard DIR")
    run, analyst = Run.load(arguments.run_dir), arguments.analyst
    for kind in kinds:
        path = Path(getattr(arguments, kind))
        if kind == "onnx":
            _write_onnx(run, path)
            continue
        _make_folder(path, option=f"--{kind}")
        if kind == "csv":
            from pate_fed.report.tables import write_csv_files

            names = write_csv_files(run, path, analyst=analyst)
            print(f"wrote {', '.join(names)} in {path}")
        else:
            from pate_fed.report.tensorboard import write_tensorboard

            write_tensorboard(run.result, path, analyst=analyst)
            print(f"wrote {path}: tensorboard --logdir {path}")
    return 0


def _make_folder(path: Path, *, option: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {path}: no folder can be made there ({error.strerror})") from error


def _write_onnx(run: Run, path: Path) -> None:
    from pate_fed.disk import check_file_path
    from pate_fed.format import VERSION, delta_text, epsilon_text

    check_file_path(path, option="--onnx")
    if not (run.path / "student.pt").is_file():
        raise InputError(
            f"{run.path}: holds no student of images (student.pt); others are not written as ONNX"
        )
    study = run.result.study
    about = {
        "epsilon": epsilon_text(run.epsilon),
        "delta": delta_text(run.delta),
        "protects": study.protects,
        "pate_fed": VERSION,
    }
    if study.claim is not None:
        about["claimed"] = study.claim.warning
    if not study.noise_private:
        about["warning"] = study.noise
    run.student.export_onnx(path, about=about)
    print(
        f"wrote {path}: images uint8 (n, H, W, C) to probabilities float32 (n, classes), ε={about['epsilon']}"
    )
