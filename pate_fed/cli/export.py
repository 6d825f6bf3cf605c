"""`pate-fed export`: a run's student as ONNX, for programs that know nothing of this package."""

from __future__ import annotations

import argparse
from pathlib import Path

from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.errors import InputError

__all__ = ["add_export_command"]


def add_export_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `export`."""
    export = add_command(commands, "export", "a run's student as ONNX, for use without this package")
    export.add_argument("run_dir", metavar="RUN_DIR", help="the --run-dir of a run")
    add_option(export, "--onnx FILE", "where it is written", required=True)
    export.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from pate_fed.disk import check_file_path
    from pate_fed.format import VERSION, delta_text, epsilon_text
    from pate_fed.report.run import Run

    run, path = Run.load(arguments.run_dir), Path(arguments.onnx)
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
    if not study.noise_private:
        about["warning"] = study.noise
    run.student.export_onnx(path, about=about)
    print(
        f"wrote {path}: images uint8 (n, H, W, C) to probabilities float32 (n, classes), ε={about['epsilon']}"
    )
    return 0
