"""`pate-fed predict` on every kind of file, and every mistake with its code."""

from __future__ import annotations

import gzip
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_terms
from PIL import Image

from pate_fed.cli.main import main
from pate_fed.config.sections import Queries
from pate_fed.data import pool_digest
from pate_fed.learning import StudentSettings
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.train import train_student
from pate_fed.learning.students.trainer import LabelledPool
from pate_fed.learning.teachers.forests import train_forest
from pate_fed.report.log import RunLog
from pate_fed.report.result import StudyRecord


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student of bright and dark images, both of its files, and four kinds of files of images."""
    path = tmp_path_factory.mktemp("student")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 80)
    images = rng.integers(0, 90, (80, 12, 12, 1))
    images[labels == 1, 3:9, 3:9] += 150
    images = images.astype(np.uint8)
    pool = LabelledPool(images=images, labelled_index=np.arange(60), labels=labels[:60], num_classes=2)
    settings = StudentSettings(name="supervised", epochs=20, batch_size=20)
    student = train_student(pool, settings, seed=0)
    student.save(path / "student.pt")
    student.export(path / "student.ts")
    forest = train_forest(np.eye(4), np.arange(4) % 2, num_classes=2, trees=2, seed=0)
    forest.save(path / "student.npz")
    shown = images[60:63]
    np.save(path / "three.npy", shown[..., 0])
    np.savez(path / "three.npz", images=shown, other=np.zeros(2))
    head = struct.pack(">4B3I", 0, 0, 8, 3, 3, 12, 12)
    (path / "three-idx3-ubyte.gz").write_bytes(gzip.compress(head + shown.tobytes()))
    for number, picture in enumerate(shown):
        Image.fromarray(picture[..., 0]).save(path / f"one-{number}.png")
    return path


def _shares(out: str) -> list[list[float]]:
    return [json.loads(line)["probabilities"] for line in out.splitlines()]


@pytest.mark.parametrize("name", ["student.pt", "student.ts"])
@pytest.mark.parametrize(
    "files", [["three.npy"], ["three.npz"], ["three-idx3-ubyte.gz"], ["one-0.png", "one-1.png", "one-2.png"]]
)
def test_every_file_gives_the_students_own_answer(
    folder: Path, name: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(folder / file) for file in files]
    assert main(["predict", str(folder / name), *paths, "--format", "json"]) == 0
    shares = _shares(capsys.readouterr().out)
    images = np.load(folder / "three.npy")[..., None]
    expected = Student.load(folder / "student.pt").predict_proba(images)
    assert np.allclose(shares, expected, atol=2e-6)
    assert main(["predict", str(folder / name), *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(
        f"class {row.argmax()}, probability {row.max():.3f}" in line
        for row, line in zip(expected, lines, strict=True)
    )


def _weights_of(path: Path) -> int:
    """A place inside the largest part of a file of torch's."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda part: part.file_size)
    return largest.header_offset + 30 + len(largest.filename) + 64 + largest.file_size // 2


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        (["student.pt", "none.png"], 2, "no such file"),
        (["none.pt", "three.npy"], 2, "none.pt"),
        (["none.ts", "three.npy"], 2, "none.ts"),
        (["folder.npz", "three.npy"], 2, "folder.npz: holds no student"),
        (["three.npy", "three.npy"], 2, "three.npy: not a student"),
        (["student.pt", "student.pt"], 2, "not a picture"),
        (["student.pt", "wide.npy"], 2, "wide.npy"),
        (["student.pt", "float.npy"], 2, "uint8"),
        (["student.pt", "two.npz"], 2, "one array"),
        (["student.pt", "broken.npz"], 2, "no array"),
        (["broken.ts", "three.npy"], 6, "TorchScript"),
        (["student.ts", "wide.npy"], 2, "which takes (12, 12, 1)"),
        (["student.pt", "stack.tif"], 2, "holds 2 pictures"),
        (["student.pt", "empty"], 2, "without picture files"),
        (["student.pt", "none.npy"], 2, "no image"),
        (["torn.pt", "three.npy"], 6, "damaged"),
        (["torn.ts", "three.npy"], 6, "damaged"),
        (["student-ts.pt", "three.npy"], 2, "not a student"),
        (["student-pt.ts", "three.npy"], 2, "not a student"),
        (["student.ts", "three.npy", "--device", "cuda"], 2, "no effect"),
        (["student.pt", "deep.png"], 2, "more than 8 bits"),
        (["student.pt", "torn.bmp"], 2, "torn.bmp"),
        (["labels.npz", "three.npy"], 2, "table's student.npz is meant"),
        (["torn.npz", "three.npy"], 6, "damaged"),
    ],
)
def test_mistakes_are_named(
    folder: Path, files: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(folder / "wide.npy", np.zeros((1, 12, 20), dtype=np.uint8))
    np.save(folder / "float.npy", np.zeros((1, 12, 12)))
    np.savez(folder / "two.npz", a=np.zeros(1), b=np.zeros(1))
    (folder / "broken.npz").write_bytes(b"PK")
    (folder / "broken.ts").write_bytes(b"PK")
    np.save(folder / "none.npy", np.zeros((0, 12, 12), dtype=np.uint8))
    for name in ("empty", "folder.npz"):
        (folder / name).mkdir(exist_ok=True)
    page = Image.fromarray(np.zeros((12, 12), dtype=np.uint8))
    page.save(folder / "stack.tif", save_all=True, append_images=[page])
    np.savez(folder / "labels.npz", index=np.arange(3), answered=np.ones(3, dtype=bool), label=np.arange(3))
    for name in ("student.pt", "student.ts", "student.npz"):  # torch alone answers with the damaged weights
        damaged = bytearray((folder / name).read_bytes())
        damaged[_weights_of(folder / name)] ^= 0xFF
        (folder / name.replace("student", "torn")).write_bytes(damaged)
    (folder / "student-ts.pt").write_bytes((folder / "student.ts").read_bytes())
    (folder / "student-pt.ts").write_bytes((folder / "student.pt").read_bytes())
    Image.fromarray(np.full((12, 12), 4000, dtype=np.uint16)).save(folder / "deep.png")
    (folder / "torn.bmp").write_bytes(b"BM" + bytes(40))
    words_of = (word if word in ("--device", "cuda") else str(folder / word) for word in files)
    assert main(["predict", *words_of]) == code
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err


def test_an_exported_student_reads_dicom_images_as_its_run_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = np.load(folder / "three.npy")[0][..., None]
    monkeypatch.setattr("pate_fed.cli.predict.read_dicom", lambda file, **how: (picture, ""))
    (tmp_path / "one.dcm").touch()
    for name in ("student.pt", "student.ts"):
        assert main(["predict", str(folder / name), str(tmp_path / "one.dcm")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and "one.dcm[0]: class " in first


@pytest.mark.parametrize("name", ["student.pt", "student.ts"])
def test_a_grey_student_reads_colour_files_as_its_hospitals_did(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Image.open(folder / "one-0.png") as grey:
        grey.convert("RGB").save(folder / "as-rgb.png")
    student = str(folder / name)
    assert main(["predict", student, str(folder / "one-0.png"), str(folder / "as-rgb.png")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split("[0]")[1] == second.split("[0]")[1]


def test_a_program_in_a_runs_directory_is_run_only_by_its_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As runs of private labels leave it."""
    (tmp_path / "student.ts").write_bytes((folder / "student.ts").read_bytes())
    assert main(["predict", str(tmp_path), str(folder / "three.npy")]) == 2
    assert f"name it if you trust it: {tmp_path / 'student.ts'}" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "student.ts"), str(folder / "three.npy")]) == 0


@pytest.mark.parametrize("name", ["named.pt", "named.ts"])
def test_a_folder_is_its_pictures_and_classes_have_their_names(
    folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    student = Student.load(folder / "student.pt")
    student.class_names = ("dark", "bright")
    student.save(tmp_path / "named.pt")
    student.export(tmp_path / "named.ts")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "notes.txt").write_text("no picture", encoding="utf-8")
    for number in range(3):
        (pictures / f"{number}.PNG").write_bytes((folder / f"one-{number}.png").read_bytes())
    assert main(["predict", str(tmp_path / name), str(pictures)]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = student.predict(np.load(folder / "three.npy")[..., None])
    assert [line.split(", ")[0] for line in lines] == [
        f"{pictures / f'{number}.PNG'}[0]: class {student.class_names[label]}"
        for number, label in enumerate(expected)
    ]
    assert main(["predict", str(tmp_path / name), str(pictures), "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["name"] for each in found] == [student.class_names[each["class"]] for each in found]


@pytest.mark.parametrize("names", [("dark",), ("dark", "\x1b[2J", "more")])
def test_names_that_do_not_fit_are_left_out(
    folder: Path, tmp_path: Path, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    student = Student.load(folder / "student.pt")
    student.class_names = names
    student.save(tmp_path / "student.pt")
    assert main(["predict", str(tmp_path / "student.pt"), str(folder / "three.npy")]) == 0
    assert all(line.split("class ")[1][0] in "01" for line in capsys.readouterr().out.splitlines())


def test_a_name_from_a_file_steers_no_terminal(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student = Student.load(folder / "student.pt")
    student.class_names = ("\x1b[2Jdark", "\x1b[2Jbright")
    student.save(tmp_path / "student.pt")
    assert main(["predict", str(tmp_path / "student.pt"), str(folder / "three.npy")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "class '\\x1b[2J" in out


def test_a_tables_student_answers_about_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.linspace(0, 1, 40)[:, None]
    forest = train_forest(rows, (rows[:, 0] > 0.5).astype(np.int64), num_classes=2, trees=5, seed=0)
    forest.save(tmp_path / "student.npz")
    (tmp_path / "new.csv").write_text("age,dose,outcome\n1,0.1,\n2,0.9,ill\n", encoding="utf-8")
    command = ["predict", str(tmp_path / "student.npz"), str(tmp_path / "new.csv")]
    assert main(command) == 2
    assert "study.toml" in capsys.readouterr().err
    table = '[data]\ndataset = "table"\n[data.table]\nlabel = "outcome"\nclasses = ["well", "ill"]\n'
    study = tmp_path / "study.toml"
    study.write_text(table + 'columns = {dose = "number"}\n', encoding="utf-8")
    assert main(command) == 0
    first, second, right, *warnings = capsys.readouterr().out.splitlines()
    assert "new.csv[0]: class well, probability" in first and "new.csv[1]: class ill" in second
    assert right == "accuracy: 1 of 1 right (21 to 100 %; majority 100 %)"
    assert len(warnings) == 2 and all(line.startswith("warning: ") for line in warnings)
    assert main([*command, "--format", "json"]) == 0
    *found, told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told["evaluation"]["accuracy"] == told["evaluation"]["n"] == 1
    assert [(each["row"], each["class"], each["name"]) for each in found] == [(0, 0, "well"), (1, 1, "ill")]
    study.write_text(table + 'columns = {dose = "number", age = "number"}\n', encoding="utf-8")
    assert main(command) == 2
    assert "not that of student.npz" in capsys.readouterr().err
    study.write_text("data = 3\n", encoding="utf-8")
    assert main(command) == 2
    assert "data in" in (error := capsys.readouterr().err) and "is 3: a table of settings" in error


def test_a_student_of_rows_of_one_s_own_answers_about_arrays_and_has_no_columns_for_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.linspace(0, 1, 40)[:, None] * [1.0, 2.0]
    forest = train_forest(rows, (rows[:, 0] > 0.5).astype(np.int64), num_classes=2, trees=5, seed=0)
    forest.save(tmp_path / "student.npz")
    (tmp_path / "study.toml").write_text('[data]\ndataset = "my_data:load"\n', encoding="utf-8")
    (tmp_path / "all.csv").write_text("age,dose\n0.1,0.2\n", encoding="utf-8")
    np.save(tmp_path / "rows.npy", rows[[2, 30]])
    np.savez(tmp_path / "rows.npz", x=rows[[2, 30]], y=np.array([0, 0]))
    np.savez(tmp_path / "two.npz", a=rows, b=rows)
    np.save(tmp_path / "none.npy", rows[:0])
    np.save(tmp_path / "wide.npy", np.zeros((2, 3)))

    def predict(name: str) -> int:
        return main(["predict", str(tmp_path / "student.npz"), str(tmp_path / name)])

    for name, said in (
        ("all.csv", "has no columns to read such a file by; a .npy or .npz of numbers (n, 2) is meant"),
        ("two.npz", "holds a float64 (40, 2), b float64 (40, 2); a .npy or .npz of numbers (n, 2) is meant"),
        ("wide.npy", "holds float64 (2, 3); a .npy or .npz of numbers (n, 2) is meant"),
        ("none.npy", "holds no row"),
    ):
        assert predict(name) == 2
        error = capsys.readouterr().err
        assert said in error and "keep it beside" not in error
    for name in ("rows.npy", "rows.npz"):
        assert predict(name) == 0
        first, second, *told = capsys.readouterr().out.splitlines()
        assert f"{name}[0]: class 0, " in first and f"{name}[1]: class 1, " in second
        assert [line[:22] for line in told[:1]] == (["accuracy: 1 of 2 right"] if name == "rows.npz" else [])


def test_a_cut_short_student_of_class_sums_is_damaged_and_not_called_a_forest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = FeatureSettings(columns=(1,))
    feature_map = build_feature_map(settings, np.linspace(0, 1, 40)[:, None])
    path = tmp_path / "student.npz"
    SumsStudent(feature_map, np.zeros((feature_map.dimension, 2))).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert main(["predict", str(path), str(tmp_path / "new.csv")]) == 6
    error = capsys.readouterr().err
    assert "student.npz: the file is damaged" in error and "forest" not in error


def test_the_student_of_class_sums_answers_about_rows_and_about_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = FeatureSettings(name="bins", columns=(1,), cuts=((0.0, 1.0),))
    rows = build_feature_map(settings, np.zeros((2, 1)))
    weights = np.array([[0, 0], [5, 0], [0, 5], [0, 0]], dtype=np.float64)
    SumsStudent(rows, weights, sharpness=4.0).save(tmp_path / "student.npz")
    (tmp_path / "new.csv").write_text("dose\n0.1\n0.9\n", encoding="utf-8")
    table = '[data]\ndataset = "table"\n[data.table]\nlabel = "y"\nclasses = ["well", "ill"]\n'
    (tmp_path / "study.toml").write_text(table + 'columns = {dose = "number"}\n', encoding="utf-8")
    assert main(["predict", str(tmp_path / "student.npz"), str(tmp_path / "new.csv")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "new.csv[0]: class well, probability" in first and "new.csv[1]: class ill" in second
    pool = np.random.default_rng(0).integers(0, 255, (30, 28, 28, 1)).astype(np.uint8)
    images = build_feature_map(FeatureSettings(dimension=4), pool)
    student = SumsStudent(images, np.ones((images.dimension, 2)))
    student.class_names = ("dark", "bright")
    student.save(tmp_path / "of-images.npz")
    np.save(tmp_path / "three.npy", pool[:3])
    assert main(["predict", str(tmp_path / "of-images.npz"), str(tmp_path / "three.npy")]) == 0
    assert capsys.readouterr().out.count("class dark, probability 0.500") == 3
    np.save(tmp_path / "large.npy", np.zeros((3, 30, 30, 1), dtype=np.uint8))
    assert main(["predict", str(tmp_path / "of-images.npz"), str(tmp_path / "large.npy")]) == 2
    assert "large.npy" in capsys.readouterr().err


def _told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The evaluation behind the answers, as JSON; empty where there is none."""
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    found: dict[str, Any] = last.get("evaluation", {})
    return found


def test_an_archive_with_true_labels_tells_how_right_the_student_is(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student, images = str(folder / "student.pt"), np.load(folder / "three.npy")
    told = Student.load(folder / "student.pt").predict(images[..., None])
    np.savez(tmp_path / "named.npz", x=images, y=np.append(told[:2], 1 - told[2]))
    assert main(["predict", student, str(tmp_path / "named.npz"), "--format", "json"]) == 0
    found = _told(capsys)
    assert (found["accuracy"], found["n"], found["left_out"]) == (0.666667, 3, 0)
    assert sum(each["n"] for each in found["recall"].values()) == 3
    assert main(["predict", student, str(tmp_path / "named.npz")]) == 0
    assert "accuracy: 2 of 3 right (21 to 94 %; majority " in capsys.readouterr().out
    np.savez(tmp_path / "wrong.npz", x=images, y=np.array([0, 1, 2]))
    assert main(["predict", student, str(tmp_path / "wrong.npz")]) == 2
    assert "y holds 2: classes 0 to 1 are meant" in capsys.readouterr().err


def test_pictures_in_folders_of_classes_names_are_labelled(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student = Student.load(folder / "student.pt")
    student.class_names = ("dark", "bright")
    student.save(tmp_path / "named.pt")
    folders = [tmp_path / name for name in ("dark", "bright", "elsewhere")]
    for each in folders:
        each.mkdir()
        (each / "0.png").write_bytes((folder / "one-0.png").read_bytes())
    assert main(["predict", str(tmp_path / "named.pt"), *map(str, folders), "--format", "json"]) == 0
    found = _told(capsys)
    assert (found["accuracy"], found["n"]) == (0.5, 2) and set(found["recall"]) == {"dark", "bright"}
    assert main(["predict", str(tmp_path / "named.pt"), str(folders[2])]) == 0
    assert "accuracy" not in capsys.readouterr().out


def _run_around(folder: Path, tmp_path: Path, *, same: bool) -> Path:
    """The student in a run that asked about two of three images of `pool.npz`, or else of another pool."""
    images = np.load(folder / "three.npy")[..., None]
    digest = pool_digest(images if same else images[::-1])
    study = StudyRecord(
        terms=make_terms(pool_size=3, pool_digest=digest, labels=2, max_queries=2),
        dataset="images",
        queries=Queries(labels=2, rounds=1),
        protects="one record",
        noise="none",
        noise_private=False,
    )
    with RunLog(tmp_path / "log.jsonl") as log:
        log.write(study)
    student = tmp_path / "student.pt"
    student.write_bytes((folder / "student.pt").read_bytes())
    np.savez(
        tmp_path / "labels.npz", index=np.array([2, 0]), answered=np.ones(2, bool), label=np.zeros(2, int)
    )
    np.savez(tmp_path / "pool.npz", x=images, y=np.zeros(3, dtype=int))
    return student


@pytest.mark.parametrize("same", [True, False])
def test_what_taught_the_student_does_not_count(
    folder: Path, tmp_path: Path, same: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of the pool's three images were asked about in the run that left the student."""
    student = _run_around(folder, tmp_path, same=same)
    assert main(["predict", str(student), str(tmp_path / "pool.npz"), "--format", "json"]) == 0
    found = _told(capsys)
    assert (found["n"], found["left_out"]) == ((1, 2) if same else (3, 0))
    assert main(["predict", str(student), str(tmp_path / "pool.npz")]) == 0
    assert ("left out of it: 2" in capsys.readouterr().out) == same
    (tmp_path / "log.jsonl").write_text('{"event": "study"}\n', encoding="utf-8")
    assert main(["predict", str(student), str(tmp_path / "pool.npz")]) == 0  # it answers all the same


def test_of_the_pool_of_class_sums_every_label_counts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run_around(folder, tmp_path, same=True)
    pool = np.random.default_rng(0).integers(0, 255, (30, 12, 12, 1)).astype(np.uint8)
    images = build_feature_map(FeatureSettings(dimension=4), pool)
    SumsStudent(images, np.ones((images.dimension, 2))).save(tmp_path / "student.npz")
    assert (
        main(["predict", str(tmp_path / "student.npz"), str(tmp_path / "pool.npz"), "--format", "json"]) == 0
    )
    found = _told(capsys)
    assert (found["n"], found["left_out"]) == (3, 0)


def test_a_class_sums_student_answers_about_rows_and_about_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.linspace(0, 1, 40)[:, None]
    rng = np.random.default_rng(0)
    for settings, pool in (
        (FeatureSettings(columns=(1,)), rows),
        (FeatureSettings(dimension=9), rng.integers(0, 256, (40, 10, 10, 1), dtype=np.uint8)),
    ):
        feature_map = build_feature_map(settings, pool)
        student = SumsStudent(feature_map, rng.normal(0, 1, (feature_map.dimension, 2)))
        student.save(tmp_path / "student.npz")
        if settings.columns:
            table = '[data]\ndataset = "table"\n[data.table]\nlabel = "outcome"\nclasses = ["well", "ill"]\n'
            (tmp_path / "study.toml").write_text(table + 'columns = {dose = "number"}\n', encoding="utf-8")
            asked = tmp_path / "new.csv"
            asked.write_text("dose,outcome\n0.1,\n0.9,ill\n", encoding="utf-8")
            inputs, unit = np.array([[0.1], [0.9]]), "row"
        else:
            asked, inputs, unit = tmp_path / "images.npy", pool[:2], "image"
            np.save(asked, inputs)
        assert main(["predict", str(tmp_path / "student.npz"), str(asked), "--format", "json"]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()][:2]
        assert [each[unit] for each in found] == [0, 1]
        assert [each["class"] for each in found] == student.predict(inputs).tolist()
