"""`pate-fed`: look at data, plan a budget, read and check a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed import __version__
from pate_fed.cli.doctor import add_doctor_command
from pate_fed.cli.identity import add_hospital_commands
from pate_fed.cli.label_dp import add_label_dp_command
from pate_fed.cli.parser import Parser, print_lines
from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.runtime.launch import INTERRUPTED, terminating

if TYPE_CHECKING:
    from pate_fed.privacy import Plan

__all__ = ["main"]

# Spelt out, as the rooms themselves take long to import; of the reproductions, how long 5 seeds take.
_DATASETS = ("glyph", "fashion-mnist", "mnist", "svhn", "cifar10", "cifar100", "cinic10")
_REPRODUCTIONS = {
    "pate++-fashion-mnist": "within an hour",
    "pate++-mnist-votes": "minutes for the first student, an hour for all",
    "fashion-mnist-frontier": "many hours; the first student's curves in the first",
    "fashion-mnist-threshold": "some minutes",
    "interactive-gnmax": "20 minutes for the first student, another hour for the second",
    "scalable-glyph": "a quarter to half an hour",
    "pate-2017-mnist": "hours: the GAN; its other students some minutes",
    "pate-2017-questions": "an hour or more",
    "pate-2017-adult": "minutes",
    "pate-2017-diabetes": "minutes",
    "label-dp-fashion-mnist": "an hour with --seeds 1, three with 5",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        with terminating(threading.Event()):
            return run(arguments)
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader left, as `| head` does
        return 0


def _data(arguments: argparse.Namespace) -> int:
    from pate_fed.data import GlyphSettings, contact_sheet, load_dataset
    from pate_fed.report import counted_phase, make_progress

    if arguments.preview:
        _check_picture("--preview", arguments.preview)
    glyph = GlyphSettings()
    chosen = {
        entry.name: getattr(arguments, entry.name)
        for entry in fields(glyph)
        if getattr(arguments, entry.name, None) is not None
    }
    folder = None if arguments.data_dir is None else Path(arguments.data_dir)
    with counted_phase(make_progress(quiet=False), "drawing, once") as drawn:
        dataset = load_dataset(
            arguments.dataset,
            glyph=replace(glyph, **chosen),
            data_dir=folder,
            download=arguments.download,
            on_progress=drawn,
        )
    print(
        f"{dataset.name}: {len(dataset.private_labels)} private, {len(dataset.public_labels)} public "
        f"({dataset.num_queries} to ask about), {dataset.num_classes} classes, "
        f"{'×'.join(map(str, dataset.public_images.shape[1:]))}"
    )
    print(f"public pool SHA-256 {dataset.pool_digest}")
    if arguments.preview:
        contact_sheet(dataset, Path(arguments.preview))
        print(f"wrote {arguments.preview}")
    return 0


def _ledger_show(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy import describe
    from pate_fed.protocol.label_verify import is_label_run, verify_labels

    run_dir = Path(arguments.run_dir)
    labels = is_label_run(run_dir)
    print_lines(verify_labels(run_dir).lines() if labels else describe(_ledger_path(arguments.run_dir)))
    return 0


def _ledger_verify(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy import LedgerReport
    from pate_fed.privacy.ledger.run import verify_run
    from pate_fed.protocol.label_verify import LabelReport, is_label_run, verify_labels

    report: LabelReport | LedgerReport
    if is_label_run(Path(arguments.run_dir)):
        for name in ("public_key", "head"):
            if (value := getattr(arguments, name)) is not None:
                raise InputError(f"--{name.replace('_', '-')} {value}: goes with a ledger; labels have terms")
        report = verify_labels(Path(arguments.run_dir))
    else:
        key, head = arguments.public_key, arguments.head
        report = verify_run(Path(arguments.run_dir), public_key=key, head=head)
    if arguments.format == "json":
        print(json.dumps(report.to_dict()))
    else:
        print_lines(report.lines())
    return 0


def _ledger_path(run_dir: str) -> Path:
    path = Path(run_dir) / "ledger.sqlite"
    if not path.is_file():
        raise InputError(f"{run_dir}: holds no ledger.sqlite; give the --run-dir of a run")
    return path


def _plan(arguments: argparse.Namespace) -> int:
    if arguments.picture:
        _check_picture("--picture", arguments.picture)
    try:
        made = _make_plan(arguments)
    except InputError as error:
        raise _as_typed(error, _PLAN_OPTIONS) from error
    if arguments.picture:
        from pate_fed.report.plan import draw_plan

        draw_plan(made.to_dict(), Path(arguments.picture))
    if arguments.format == "json":
        print(json.dumps(made.to_dict()))
    else:
        print_lines(made.lines())
    return 0


_PLAN_OPTIONS = {
    "num_teachers": "--teachers",
    "num_classes": "--classes",
    "num_hospitals": "--hospitals",
    "max_queries": "--max-queries",
    "votes_moved": "--votes-moved",
    "epsilon": "--epsilon",
    "delta": "--delta",
    "agreement": "--agreement",
}


def _as_typed(error: InputError, options: Mapping[str, str]) -> InputError:
    """The same about an option rather than a parameter."""
    name, _, rest = str(error).partition("=")
    return InputError(f"{options[name]} {rest}") if name in options else error


def _make_plan(arguments: argparse.Namespace) -> Plan:
    from pate_fed.privacy import Protection, past_votes_from_file, plan

    votes, moved = _agreement(arguments.agreement), arguments.votes_moved
    if moved is None:
        # As a study reckons: with one record more a hospital's teachers are all dealt other records.
        whole = arguments.unit == "hospital" or arguments.adjacency == "add-or-remove-one"
        known = whole and arguments.hospitals and arguments.hospitals > 0
        moved = max(1, -(-arguments.teachers // arguments.hospitals)) if known else 1
    return plan(
        num_teachers=arguments.teachers,
        num_classes=arguments.classes,
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        votes=votes if isinstance(votes, float) else past_votes_from_file(votes),
        max_queries=arguments.max_queries,
        num_hospitals=arguments.hospitals,
        protection=Protection(unit=arguments.unit, adjacency=arguments.adjacency, votes_moved=moved),
    )


def _check_picture(option: str, given: str) -> None:
    """Before the work is done, not after."""
    path = Path(given)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{option} {given}: no file can be written there; give a path such as sheet.png")


def _agreement(given: str) -> float | Path:
    """A share of teachers, or a file of past totals."""
    try:
        return float(given)
    except ValueError:
        return Path(given)


def _audit(arguments: argparse.Namespace) -> int:
    from pate_fed.privacy import audit_all, noise_from_seed

    try:
        found = audit_all(
            noise_from_seed(arguments.seed),
            trials=arguments.trials,
            confidence=arguments.confidence,
            shrink=arguments.shrink,
        )
    except InputError as error:
        names = ("trials", "confidence", "shrink")
        raise _as_typed(error, {name: f"--{name}" for name in names}) from error
    print_lines(result.line() for result in found)
    return 0 if all(result.passed for result in found) else IntegrityError.exit_code


def _report(arguments: argparse.Namespace) -> int:
    from pate_fed.report import read_result, write_report

    run_dir = Path(arguments.run_dir)
    path = run_dir / ("report-publishable.html" if arguments.publishable else "report.html")
    write_report(read_result(run_dir), path, publishable=arguments.publishable)
    print(f"wrote {path}")
    return 0


def _predict(arguments: argparse.Namespace) -> int:
    from pate_fed.cli.predict import predict_files

    files = [Path(name) for name in arguments.files]
    for line in predict_files(
        Path(arguments.student), files, output=arguments.format, device=arguments.device
    ):
        print(line)
    return 0


def _reproduce(arguments: argparse.Namespace) -> int:
    from pate_fed.reproduce import Reproduction, reproduce, usual_workers

    name, workers = arguments.name, arguments.workers
    plan = Reproduction(
        data_dir=None if arguments.data_dir is None else Path(arguments.data_dir),
        out_dir=Path(arguments.out),
        paper=arguments.paper,
        seeds=arguments.seeds,
        tables=None if arguments.tables is None else tuple(arguments.tables),
        device=arguments.device,
        totals=None if arguments.totals is None else Path(arguments.totals),
        workers=usual_workers(name, arguments.device) if workers is None else workers,
    )
    for line in reproduce(name, plan, on_progress=lambda line: print(line, file=sys.stderr)):
        print(line)
    print(f"wrote {arguments.out}")
    return 0


def _parser() -> Parser:
    parser = Parser(prog="pate-fed", description=__doc__)
    parser.add_argument("--version", action="version", version=f"pate_fed {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_data(commands)
    _add_plan(commands)
    _add_audit(commands)
    _add_ledger(commands)
    add_hospital_commands(commands)
    add_doctor_command(commands)
    add_label_dp_command(commands)
    _add_reproduce(commands)
    predict = commands.add_parser("predict", help="a student's classes for images or rows in files")
    predict.add_argument(
        "student", metavar="STUDENT", help="student.pt, an exported student.ts, or a table's student.npz"
    )
    predict.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="pictures, folders of them, .npy, .npz or idx files; a table: .csv or .npz",
    )
    predict.add_argument("--format", choices=("text", "json"), default="text")
    predict.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), cuda or auto")
    predict.set_defaults(run=_predict)
    report = commands.add_parser("report", help="write report.html of a run again")
    report.add_argument("run_dir", metavar="RUN_DIR")
    report.add_argument("--publishable", action="store_true", help="leave out what comes from private votes")
    report.set_defaults(run=_report)
    return parser


def _add_data(commands: argparse._SubParsersAction[Parser]) -> None:
    data = commands.add_parser("data", help="draw or read a data set, and show it")
    data.add_argument("dataset", metavar="NAME", help=", ".join(_DATASETS))
    data.add_argument("--preview", metavar="FILE.png", help="draw a contact sheet")
    data.add_argument("--data-dir", metavar="DIR", help="folder of the data files (else PATE_FED_DATA)")
    data.add_argument("--download", action="store_true", help="let torchvision fetch the data set")
    data.add_argument("--classes", type=int, help="glyph: symbols, 2 to 150 (default 10)")
    data.add_argument("--private", type=int, help="glyph: private images (default 60000)")
    data.add_argument("--public", type=int, help="glyph: public images (default 10000)")
    data.add_argument("--seed", type=int, help="glyph: seed (default 0)")
    data.set_defaults(run=_data)


def _add_plan(commands: argparse._SubParsersAction[Parser]) -> None:
    plan = commands.add_parser(
        "plan", help="noise, threshold and labels that a budget affords; touches no data"
    )
    plan.add_argument("--teachers", type=int, default=250, help="teachers in the federation (default 250)")
    plan.add_argument("--hospitals", type=int, metavar="N", help="hospitals that hold them, for advice")
    plan.add_argument("--classes", type=int, default=10, help="classes that are voted on (default 10)")
    plan.add_argument("--epsilon", type=float, required=True, help="budget against all who see labels")
    plan.add_argument("--delta", type=float, default=1e-5, help="the δ of the budget (default 1e-5)")
    plan.add_argument(
        "--agreement",
        default="0.85",
        metavar="SHARE|FILE",
        help="share of teachers that vote right, or a .npy/.npz of a PAST study's totals (default 0.85)",
    )
    plan.add_argument("--max-queries", type=int, default=9000, help="size of the public pool (default 9000)")
    plan.add_argument(
        "--votes-moved",
        type=int,
        help="votes that one protected unit controls (default 1; a hospital, or a record that is added or "
        "removed: all of a hospital's teachers)",
    )
    plan.add_argument(
        "--unit", choices=("record", "hospital"), default="record", help="what is protected (default record)"
    )
    plan.add_argument(
        "--adjacency",
        choices=("replace-one", "add-or-remove-one"),
        default="replace-one",
        help="what neighbouring data sets differ by (default replace-one)",
    )
    plan.add_argument("--picture", metavar="FILE.png", help="draw labels against ε")
    plan.add_argument("--format", choices=("text", "json"), default="text")
    plan.set_defaults(run=_plan)


def _add_reproduce(commands: argparse._SubParsersAction[Parser]) -> None:
    times = "\n".join(f"  {name:<24} {time}" for name, time in _REPRODUCTIONS.items())
    again = commands.add_parser(
        "reproduce",
        help="a paper's figures, ours beside the published ones",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"NAME, and roughly how long --quick takes on 2 idle cores:\n{times}\n"
        "Those of an hour and more go on where they were stopped.",
    )
    again.add_argument("name", metavar="NAME", help="one of those below")
    scale = again.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_true", help="small networks and few epochs (default)")
    scale.add_argument(
        "--paper",
        action="store_true",
        help="the paper's networks and epochs, on a GPU: pate++-fashion-mnist, pate-2017-mnist, "
        "label-dp-fashion-mnist",
    )
    again.add_argument(
        "--seeds", type=int, default=5, metavar="N", help="students a figure (default 5); not scalable-glyph"
    )
    again.add_argument(
        "--tables",
        type=int,
        nargs="+",
        choices=(1, 2, 3, 4),
        help="tables to fill (default 1 2 3; 4: Table I with a public encoder): pate++-fashion-mnist",
    )
    again.add_argument("--data-dir", metavar="DIR", help="folder of the data files (else PATE_FED_DATA)")
    again.add_argument("--out", default="reproduced", metavar="DIR", help="results (default reproduced)")
    again.add_argument(
        "--totals",
        metavar="FILE",
        help="ready totals (.npz or .npy) instead of teachers: pate++-fashion-mnist, pate++-mnist-votes, "
        "fashion-mnist-threshold, interactive-gnmax, pate-2017-questions",
    )
    again.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), cuda or auto")
    again.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="students trained side by side (default one a core, at most 8; on a GPU 1): "
        "pate++-fashion-mnist, pate++-mnist-votes, fashion-mnist-frontier, pate-2017-mnist",
    )
    again.set_defaults(run=_reproduce)


def _add_audit(commands: argparse._SubParsersAction[Parser]) -> None:
    audit = commands.add_parser("audit", help="sample the mechanisms and hold them against the ledger's ε")
    audit.add_argument("--trials", type=int, default=10_000, help="samples a mechanism (default 10000)")
    audit.add_argument("--confidence", type=float, default=0.999, help="of the lower bounds (default 0.999)")
    audit.add_argument(
        "--shrink", type=float, default=1.0, help="draw less noise than is charged: a test fault"
    )
    audit.add_argument("--seed", type=int, help="seeded noise: quicker, and repeatable")
    audit.set_defaults(run=_audit)


def _add_ledger(commands: argparse._SubParsersAction[Parser]) -> None:
    ledger = commands.add_parser("ledger", help="read or check a run's privacy ledger")
    actions = ledger.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="the ledger in words")
    show.set_defaults(run=_ledger_show)
    verify = actions.add_parser(
        "verify",
        help="recompute every ε from the entries, check the hash chain, and the labels and figures beside it",
    )
    verify.add_argument("--format", choices=("text", "json"), default="text")
    verify.set_defaults(run=_ledger_verify)
    verify.add_argument(
        "--public-key", metavar="HEX", help="the coordinator's Ed25519 key, which must have signed every row"
    )
    verify.add_argument(
        "--head", metavar="HASH", help="a row's hash from elsewhere (a report), which must be in the chain"
    )
    for action in (show, verify):
        action.add_argument("run_dir", metavar="RUN_DIR")


if __name__ == "__main__":
    sys.exit(main())
