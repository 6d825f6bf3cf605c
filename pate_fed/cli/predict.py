"""`pate-fed predict`: a student's classes and probabilities for images, or for a table's rows, in files."""

from __future__ import annotations

import argparse
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.cli.evaluation import AccuracyTally, taught_places, true_labels
from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.config.study import load_study
from pate_fed.data import InputSpec, Schema, read_pool
from pate_fed.data.pictures import DICOM_SUFFIXES, PICTURE_SUFFIXES, read_arrays, read_dicom, read_image_file
from pate_fed.disk import MOST_TABLE, check_file_path, read_file
from pate_fed.errors import InputError, IntegrityError, naming_refusal, require_libraries
from pate_fed.format import printable
from pate_fed.structure import from_plain
from pate_fed.structure.parts import search_folder

if TYPE_CHECKING:
    from pate_fed.identity.bundle import Bundle

BATCH = 500
MOST_NOTICE = 2**16  # bytes of a notice that a student is withdrawn


def add_predict_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `predict`."""
    predict = add_command(commands, "predict", "a student's classes for images or rows in files")
    predict.add_argument(
        "student",
        metavar="STUDENT",
        help="a run's directory, its student.pt, student.bundle, an exported .ts, or a table's student.npz",
    )
    predict.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="pictures, folders of them, .npy, .npz or idx files; for a table .csv or .npz, for rows of your "
        "own .npy or .npz; where they tell true classes (a label, y, a folder's name) the accuracy follows",
    )
    add_option(
        predict, "--format", "of the output, json: an object a line", choices=("text", "json"), default="text"
    )
    add_option(predict, "--device NAME", "cpu, cuda or auto", default="cpu")
    own = "of a run's directory: the code of your own student, which is run"
    add_option(predict, "--student MODULE:MAKE", own, dest="own")
    predict.set_defaults(run=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    files = [Path(name) for name in arguments.files]
    how = {"output": arguments.format, "device": arguments.device, "own": arguments.own}
    for line in predict_files(Path(arguments.student), files, **how):
        print(line)
    return 0


@dataclass(frozen=True, slots=True)
class Predictor:
    """A loaded student: how it reads a file, its class probabilities (n, classes), its classes' names.

    `truth` are the true classes in a file of so many images or rows, for a student of so many classes: int64
    (n,), -1 where it tells none. `unit` is what one of its inputs is called. `by_labels`: public inputs'
    labels taught it.
    """

    read: Callable[[Path], NDArray[Any]]
    predict_proba: Callable[[NDArray[Any], Path], NDArray[np.float32]]
    truth: Callable[[Path, int, int], NDArray[np.int64]]
    class_names: tuple[str, ...] = ()
    unit: str = "image"
    by_labels: bool = True
    target_range: tuple[float, float] | None = None
    labels: tuple[str, ...] = ()

    @property
    def evaluation(self) -> AccuracyTally:
        """What gathers its answers beside true ones."""
        return AccuracyTally(self.class_names, target_range=self.target_range, labels=self.labels)

    def answers(
        self, inputs: NDArray[Any], source: Path, *, at_once: int
    ) -> Iterator[tuple[list[float], Any]]:
        """Each input's probabilities, and its class; or its number, or of several labels each one's yes."""
        for start in range(0, len(inputs), at_once):
            for row in self.predict_proba(inputs[start : start + at_once], source).tolist():
                if self.labels:
                    yield row, row[1::2]
                elif self.target_range is not None:
                    yield row, row[0] * self.target_range[0] + row[1] * self.target_range[1]
                else:
                    yield row, row.index(max(row))


def predict_files(
    student: Path, files: Sequence[Path], *, output: str = "text", device: str = "cpu", own: str | None = None
) -> Iterator[str]:
    """One line an image or row: its file, its number in the file, class and probability; or a JSON object.

    Of several labels it is each one's probability of yes. Of a folder every picture right in it, by name.
    Where files tell true classes (a table's label, `y` of an .npz, a picture's folder of a class's name) the
    student's accuracy follows, as text or as one JSON object with the key "evaluation".

    `student` is a student.pt, a student.bundle or a table's student.npz, which are read without running code,
    or the directory of a run with one of them; or a TorchScript file, which is a program: take one only from
    those you trust.
    `own` names the code of a student of the user's own, module:attribute, in a run's directory.

    Raises:
        InputError: a file is not there, `student` is another kind of file, or a file holds nothing that fits
            the student.
        IntegrityError: the student fails its checksums.
    """
    student = _file_in(student) if student.is_dir() and own is None else student
    if own is not None and not student.is_dir():
        raise InputError(f"--student {own}: goes with the directory of its run, and not with a file")
    if device not in ("cpu", "auto") and student.suffix in (".npz", ".ts"):
        raise InputError(
            f"--device {device} would have no effect: {student.name} runs on the CPU; leave it out"
        )
    model = _load(student, device) if own is None else _load_own(student, own)
    unit = model.unit
    evaluation, beside = model.evaluation, dict[Path, tuple[str, Any]]()
    for path in files if unit == "row" else with_pictures(files):
        inputs, classes = model.read(path), list[Any]()
        for number, (row, told) in enumerate(model.answers(inputs, path, at_once=BATCH)):
            classes.append(told)
            values, text = _told(model, row, told)
            as_json = json.dumps({"file": str(path), unit: number, **values})
            yield as_json if output == "json" else f"{path}[{number}]: {text}"
        truth = model.truth(path, len(inputs), len(row))
        if (truth >= 0).any():
            taught = taught_places(student, inputs, beside, by_labels=model.by_labels)
            evaluation.add(classes, truth, taught)
    if output == "json":
        values = evaluation.to_dict()
        yield from [json.dumps({"evaluation": values})] if values else []
    else:
        yield from evaluation.lines()


def _told(model: Predictor, row: list[float], told: Any) -> tuple[dict[str, Any], str]:
    """What a student says of one input, as values and in words."""
    if model.target_range is not None:
        return {"number": round(told, 6)}, f"{told:.6g}"
    if model.labels:
        each = dict(zip(model.labels, (round(share, 6) for share in told), strict=True))
        words = ", ".join(f"{_shown(name)} {share:.3f}" for name, share in each.items())
        return {"probabilities": each}, words
    name = {"name": model.class_names[told]} if len(model.class_names) == len(row) else {}
    values = {"class": told, **name, "probabilities": [round(share, 6) for share in row]}
    return values, f"class {_shown(name['name']) if name else told}, probability {row[told]:.3f}"


def _shown(name: str) -> str:
    """A name from another's file, unable to steer the terminal."""
    return name if name.isprintable() else ascii(name)


def with_pictures(files: Sequence[Path]) -> Iterator[Path]:
    """The files, with a folder's pictures in its place: those right in it, then those in its folders."""
    suffixes = PICTURE_SUFFIXES + DICOM_SUFFIXES
    for path in files:
        pictures = [path]
        if path.is_dir():
            folders = [path, *sorted(each for each in path.iterdir() if each.is_dir())]
            found = (each for folder in folders for each in sorted(folder.iterdir()))
            pictures = [each for each in found if each.suffix.lower() in suffixes]
        if not pictures:
            raise InputError(f"{path}: a folder without picture files ({', '.join(suffixes)})")
        yield from pictures


def _load(path: Path, device: str) -> Predictor:
    from pate_fed.learning.students.class_sums import holds_sums

    with naming_refusal(f"{path}: cannot be read"):
        content = read_file(path, most=MOST_TABLE)
    if path.suffix == ".bundle":
        return _load_bundle(path, content, device)
    try:
        if path.suffix == ".npz":
            return _load_sums(path) if holds_sums(path) else _load_forest(path)
        return _load_torchscript(path, content) if path.suffix == ".ts" else _load_checkpoint(path, device)
    except IntegrityError as error:
        from pate_fed.learning.tensors import is_whole  # late: a table's student needs no torch

        if content.startswith(b"PK") and not is_whole(content):  # an archive, as every student, but damaged
            raise
        raise InputError(
            f"{path}: not a student of this version of pate_fed; a run's student.pt, its exported student.ts "
            "or a table's student.npz is meant"
        ) from error


def _file_in(run_dir: Path) -> Path:
    """The file of the student in a run's directory."""
    from pate_fed.learning.students.own import PREDICTIONS

    for name in ("student.npz", "student.pt"):
        if (run_dir / name).is_file():
            return run_dir / name
    if (run_dir / PREDICTIONS).is_file():
        raise InputError(f"{run_dir}: its student is your own code; name it with --student MODULE:MAKE")
    if (run_dir / "student.ts").is_file():
        raise InputError(
            f"{run_dir}: its student is a program; name it if you trust it: {run_dir / 'student.ts'}"
        )
    raise InputError(f"{run_dir}: holds no student; the --run-dir of a run is meant")


def _load_bundle(path: Path, content: bytes, device: str) -> Predictor:
    from pate_fed.identity.bundle import Bundle

    bundle = Bundle.read(content, where=str(path))
    for line in withdrawn(bundle, path.parent):
        print(f"{path}: {line}", file=sys.stderr)
    print(
        f"{path}: signed by {bundle.signer[:16]}…; whose key that is, `pate-fed hospital predict` tells at a "
        "hospital that took part",
        file=sys.stderr,
    )
    return predictor_of(bundle, where=str(path), device=device)


def withdrawn(bundle: Bundle, folder: Path) -> Iterator[str]:
    """A line where a notice that lies in this folder withdraws the student in a bundle.

    Raises:
        IntegrityError: the notice is damaged, or not its coordinator's.
        InputError: it cannot be read.
    """
    from pate_fed.identity.bundle import Withdrawal

    path = folder / Withdrawal.name(bundle.digest)
    if path.exists():
        with naming_refusal(f"{path}: cannot be read"):
            found = Withdrawal.read(read_file(path, most=MOST_NOTICE), bundle, where=str(path))
        yield printable(f"WITHDRAWN by the study's coordinator on {found.day}: {found.reason}")


def predictor_of(bundle: Bundle, *, where: str, device: str = "cpu") -> Predictor:
    """The student in a bundle, which `where` names in errors."""
    student, facts = bundle.student(where, device=device), bundle.facts
    names = facts.classes or tuple(map(str, range(student.num_classes)))
    if len(names) != student.num_classes:
        raise IntegrityError(
            f"{where}: names {len(names)} classes, and its student has {student.num_classes}"
        )
    by_labels = facts.kind != "class-sums"
    if facts.table is not None:
        if getattr(student, "several", 0) != len(facts.table.labels):
            raise IntegrityError(f"{where}: its student tells other labels than its table has")
        return replace(_of_schema(facts.table, student.predict_proba), by_labels=by_labels)
    if len(facts.shape) != 3:
        raise IntegrityError(f"{where}: neither says what its columns mean nor how large its images are")
    images = _of_images(student.predict_proba, facts.shape, names, window=facts.window)
    return replace(images, by_labels=by_labels)


def write_onnx_file(
    student: Any, table: Schema | None, path: Path, *, classes: Sequence[str], about: Mapping[str, str]
) -> None:
    """Write a student for another runtime, and say what it takes; of rows where there is a `table`.

    Raises:
        InputError: it has no such form, a library is missing, or the file cannot be written.
    """
    check_file_path(path, option="--onnx")
    require_libraries("torch", "onnx", what="ONNX")
    takes = "images uint8 (n, H, W, C)"
    if table is None:
        student.export_onnx(path, about=about)
    else:
        from pate_fed.learning.students.export import write_sums_onnx

        write_sums_onnx(student, path, columns=table.columns, class_names=classes, about=about)
        takes = f"rows float64 (n, {table.num_features}), encoded as its metadata say,"
    print(f"wrote {path}: {takes} to probabilities float32 (n, classes), ε={about['epsilon']}")


def _load_own(run_dir: Path, name: str) -> Predictor:
    from pate_fed.report.result import StudyRecord
    from pate_fed.report.run import Run

    search_folder(Path.cwd())
    run = Run.load(run_dir)
    student, record = run.student_from(name), run.result.study
    assert isinstance(record, StudyRecord)  # or it has no such student
    terms = record.terms
    if len(terms.image_shape) == 1:
        sizes = {"num_features": terms.image_shape[0], "num_classes": terms.num_classes}
        return _of_table(run_dir / "student", student.predict_proba, **sizes)
    shape = terms.image_shape

    def predict_proba(images: NDArray[Any]) -> NDArray[np.float32]:
        if images.shape[1:] != shape:
            raise InputError(f"images are {images.shape[1:]} each: the student takes {shape}")
        found: NDArray[np.float32] = student.predict_proba(images)
        return found

    return _of_images(predict_proba, shape, terms.classes)


def _load_sums(path: Path) -> Predictor:
    from pate_fed.learning.students.class_sums import SumsStudent

    student = SumsStudent.load(path)
    if student.image_shape is None:
        sizes = {
            "num_features": sum(student.feature_map.settings.columns),
            "num_classes": student.num_classes,
        }
        found = _of_table(path, student.predict_proba, **sizes)
    else:
        found = _of_images(student.predict_proba, student.image_shape, student.class_names)
    return replace(found, by_labels=False)


def _load_forest(path: Path) -> Predictor:
    from pate_fed.learning.teachers.forests import Forest

    forest = Forest.load(path)
    sizes = {"num_features": len(forest.fill), "num_classes": forest.num_classes}
    return _of_table(path, forest.predict_proba, **sizes)


def _of_table(
    path: Path,
    predict_proba: Callable[[NDArray[Any]], NDArray[np.float32]],
    *,
    num_features: int,
    num_classes: int,
) -> Predictor:
    """A table's student; what the columns mean is in the study.toml that its run left beside it.

    A study of rows of one's own names no columns there, and its rows come as numbers.
    """
    beside = path.with_name("study.toml")
    if not beside.is_file():
        raise InputError(f"{beside}: is not there; keep it beside {path.name}: it says what the columns mean")
    data = load_study(beside).get("data", {})
    if not isinstance(data, Mapping):
        raise InputError(f"data in {beside} is {data!r}: a table of settings is meant")
    table = data.get("table")
    if table is None:
        return Predictor(
            lambda file: _read_rows(file, beside, num_features),
            lambda inputs, _: predict_proba(inputs),
            lambda *asked: true_labels(*asked, names=()),
            unit="row",
        )
    schema = from_plain(Schema, table, where=f"[data.table] of {beside}")
    if (schema.num_features, len(schema.class_names)) != (num_features, num_classes):
        raise InputError(f"{beside}: its [data.table] is not that of {path.name}")
    return _of_schema(schema, predict_proba)


def _of_schema(schema: Schema, predict_proba: Callable[[NDArray[Any]], NDArray[np.float32]]) -> Predictor:
    spec = InputSpec(classes=schema.class_names, schema=schema)
    rows = lru_cache(maxsize=1)(lambda file: read_pool(file, spec))
    return Predictor(
        lambda file: rows(file).inputs,
        lambda inputs, _: predict_proba(inputs),
        lambda file, *_: rows(file).labels,
        schema.class_names,
        "row",
        target_range=schema.target_range,
        labels=schema.label_names,
    )


def _read_rows(path: Path, study: Path, num_features: int) -> NDArray[np.float64]:
    """Rows of numbers of a .npy, or of a .npz (its array `x`, or its only one): float64 (n, num_features)."""
    meant = f"a .npy or .npz of numbers (n, {num_features}) is meant"
    if path.suffix not in (".npy", ".npz"):
        raise InputError(
            f"{path}: {study} is of a study of rows of your own, which has no columns to read such a file "
            f"by; {meant}"
        )
    arrays = read_arrays(path)
    rows = arrays.get("x", next(iter(arrays.values())) if len(arrays) == 1 else None)
    if rows is None or rows.ndim != 2 or rows.shape[1] != num_features or rows.dtype.kind not in "fiub":
        held = ", ".join(f"{name} {each.dtype} {each.shape}".strip() for name, each in arrays.items())
        raise InputError(f"{path}: holds {held or 'nothing'}; {meant}")
    if not len(rows):
        raise InputError(f"{path}: holds no row")
    return rows.astype(np.float64)


def _load_checkpoint(path: Path, device: str) -> Predictor:
    from pate_fed.learning.students.student import Student

    student = Student.load(path, device=device)
    return _of_images(student.predict_proba, student.image_shape, student.class_names)


def _of_images(
    predict: Callable[[NDArray[Any]], NDArray[np.float32]],
    shape: tuple[int, ...],
    names: tuple[str, ...],
    *,
    window: tuple[float, float] | None = None,
) -> Predictor:
    def read(file: Path) -> NDArray[np.uint8]:
        if file.suffix.lower() in DICOM_SUFFIXES:
            return read_dicom(file, shape=shape, window=window)[0][None]
        return read_image_file(file, shape[2])

    def predict_proba(images: NDArray[np.uint8], source: Path) -> NDArray[np.float32]:
        try:
            return predict(images)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error

    return Predictor(read, predict_proba, lambda *asked: true_labels(*asked, names=names), names)


def _load_torchscript(path: Path, content: bytes) -> Predictor:
    import torch

    from pate_fed.learning.tensors import is_whole

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript old; see learning/students/export.py
        try:
            if not is_whole(content):
                raise ValueError("checksum")
            model = torch.jit.load(io.BytesIO(content), map_location="cpu")  # type: ignore[no-untyped-call]
            shape, names = tuple(model.image_shape), tuple(model.class_names)
        except (RuntimeError, ValueError, AttributeError) as error:
            raise IntegrityError(f"{path}: not a TorchScript file, or damaged") from error

    def predict_proba(images: NDArray[Any]) -> NDArray[np.float32]:
        try:
            with torch.inference_mode():
                return np.asarray(model(torch.from_numpy(np.array(images))).numpy(), dtype=np.float32)
        except (RuntimeError, torch.jit.Error) as error:
            raise InputError(
                f"images {images.shape[1:]} do not fit the student of {path}, which takes {shape}"
            ) from error

    return _of_images(predict_proba, shape, names)
