"""`pate-fed hospital predict`: a student comes, is checked twice, and answers about records there."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_terms
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from PIL import Image

from clients.hospital import Hospital
from clients.local import read_site
from clients.state_dir import LOCAL_SITE, SITE_VARIABLE, TERMS_FILE, LocalSettings
from pate_fed.data import Schema
from pate_fed.identity import Authority, HospitalIdentity, make_request
from pate_fed.identity.bundle import BUNDLE_FILE, StudentFacts, covered_by, pack_student
from pate_fed.kinds.terms import Terms
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.protocol.messages import EndRequest
from pate_fed.report.papers import _TO_FILL

TABLE = Schema(
    label="ill", classes=("no", "yes"), columns=(("age", ()), ("sex", ("f", "m"))), patient="patient"
)
TERMS = make_terms(
    study="heart", num_classes=2, image_shape=(3,), classes=("no", "yes"), table=TABLE, unit="patient"
)
RECORDS = "patient;age;sex;ill\n7;50,5;m;yes\n8;41;f;no\n\n9;130;w;\n"


def _pool() -> np.ndarray[Any, Any]:
    rows = np.random.default_rng(0).uniform(30, 80, size=(60, 3))
    rows[:, 1:] = np.eye(2)[np.arange(60) % 2]
    return rows


def _student() -> SumsStudent:
    features = build_feature_map(FeatureSettings(name="linear-and-kernel", columns=(1, 2)), _pool())
    return SumsStudent(features, np.random.default_rng(1).normal(size=(features.dimension, 2)))


def _facts(terms: Terms) -> StudentFacts:
    return StudentFacts(
        study=terms.study,
        terms_digest=terms.digest,
        ledger_head="cd" * 32,
        epsilon=0.9996,
        delta=1e-5,
        protects="one patient",
        private=True,
        hospitals=4,
        licence=terms.about.licence,
        classes=terms.classes,
        shape=terms.image_shape,
        table=terms.table,
    )


class House:
    """A hospital that was admitted, in a folder, and the key of its study's coordinator."""

    def __init__(self, folder: Path, terms: Terms = TERMS) -> None:
        self.terms, self.state = terms, folder / "state"
        self.authority = Authority.init(folder / "authority", address="a:1", terms=terms.to_json(), days=9)
        self.identity, given = folder / "identity", folder / "north.admission"
        self.authority.admit(make_request(self.identity, "north"), days=9).write(given)
        HospitalIdentity.offered(self.identity, given).take()
        self.state.mkdir()
        self.settings = LocalSettings(
            hospital="north", data="north.csv", state_dir=self.state, sum_key=self.identity / "sum.key"
        )

    def bundle(self, key: Ed25519PrivateKey | None = None, facts: StudentFacts | None = None) -> bytes:
        key, facts = key or self.authority.ledger_key(), facts or _facts(self.terms)
        return pack_student(_student(), facts, key, covered=covered_by(_pool()))

    def end(self, student: bytes) -> list[Any]:
        """What the hospital's own log says of an end with this student."""
        self.settings.write(self.state / LOCAL_SITE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SITE_VARIABLE, str(self.state / LOCAL_SITE))
            hospital = Hospital(read_site({}))
        hospital.end(EndRequest(status="success", exit_code=0, summary="", student=student))
        lines = (self.state / "log.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "north.csv").write_text(RECORDS)
    return House(tmp_path)


def test_a_student_comes_is_kept_and_predicts_by_the_studys_reader(house: House, run: Any) -> None:
    content = house.bundle()
    kept = house.state / BUNDLE_FILE
    [came, ended] = house.end(content)
    assert (came["event"], came["kept"]) == ("student", hashlib.sha256(content).hexdigest())
    assert ended["event"] == "ended"
    assert kept.read_bytes() == content and stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "kept the study's student (sha256 " in run("hospital", "log", "state").out
    code, out, err = run("hospital", "predict", "state", "north.csv")
    assert (code, err) == (0, "")
    assert "the student of the study 'heart': class-sums, of 4 hospitals" in out
    assert "ε=1 at δ=1e-5 for one patient" in out
    assert "may be used by: the hospitals that took part" in out
    assert "north.csv: 3 rows (semicolons, decimal commas)" in out
    assert "warning: 1 of 3 rows with what no public input of the study has" in out and ": age 1\n" in out
    assert "warning: 1 value of no category of the study, taken as missing: sex 1" in out
    assert "accuracy: " in out and "of 2" in out and "shown here alone" in out
    answers = Path("north.predictions.csv")
    assert stat.S_IMODE(answers.stat().st_mode) == 0o600
    assert hashlib.sha256(answers.read_bytes()).hexdigest() in out
    head, *rows = csv.reader(answers.read_text().splitlines())
    assert head == ["row", "no", "yes", "predicted"] and [row[0] for row in rows] == ["2", "3", "5"]
    encoded = np.array([[50.5, 0, 1], [41, 1, 0], [130, 0, 0]])
    shares = _student().predict_proba(encoded)
    assert np.allclose(np.array([row[1:3] for row in rows], dtype=float), shares, atol=1e-6)
    assert [row[3] for row in rows] == [("no", "yes")[label] for label in shares.argmax(axis=1)]
    code, _, err = run("hospital", "predict", "state", "north.csv")
    assert code == 2 and "north.predictions.csv: is there already, and stays" in err
    assert run("hospital", "predict", "state", "--dir", "identity", "north.csv", "--out", "b.csv").code == 0
    assert Path("b.csv").read_bytes() == answers.read_bytes()
    code, shown, _ = run("hospital", "predict", "state")
    assert code == 0 and out.startswith(shown) and "written" not in shown
    code, _, err = run("predict", str(kept), "north.csv", "--format", "json")
    assert code == 2 and "column sex is none of f, m" in err  # there every value has to be one of the study's


def test_a_bundle_is_read_anywhere_with_a_word_on_whose_key_signed_it(house: House, run: Any) -> None:
    content = house.bundle()
    Path("heart.bundle").write_bytes(content)
    Path("two.csv").write_text("age,sex,ill\n50.5,m,yes\n41,f,no\n")
    code, out, err = run("predict", "heart.bundle", "two.csv", "--format", "json")
    key = house.authority.ledger_key().public_key().public_bytes_raw().hex()
    assert code == 0 and f"signed by {key[:16]}…; whose key that is" in err
    *lines, told = [json.loads(line) for line in out.splitlines()]
    expected = _student().predict_proba(np.array([[50.5, 0, 1], [41, 1, 0]]))
    assert np.allclose([line["probabilities"] for line in lines], expected, atol=1e-6)
    assert told["evaluation"]["n"] == 2
    Path("heart.bundle").write_bytes(content[:-1])
    code, out, err = run("predict", "heart.bundle", "two.csv")
    assert (code, out) == (6, "") and "heart.bundle: is cut" in err


def test_a_student_for_which_there_is_no_room_is_sent_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("clients.log.write_private", full)
        with pytest.raises(OSError, match="No space"):  # which the coordinator hears as "later"
            house.end(house.bundle())
    assert not (house.state / BUNDLE_FILE).exists()
    came, ended = house.end(house.bundle())[-2:]
    assert (came["event"], ended["event"]) == ("student", "ended") and (house.state / BUNDLE_FILE).exists()


def test_the_student_is_written_for_another_runtime(house: House, run: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    house.end(house.bundle())
    code, out, _ = run("hospital", "predict", "state", "--onnx", "s.onnx")
    assert code == 0 and "wrote s.onnx: rows float64 (n, " in out and out.endswith("ε=1\n")
    session = runtime.InferenceSession("s.onnx")
    expected = _student().predict_proba(_pool())
    assert np.allclose(session.run(None, {"rows": _pool()})[0], expected, atol=2e-3)
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == list(TERMS.classes)


def test_a_row_that_is_too_short_is_named(house: House, run: Any) -> None:
    house.end(house.bundle())
    header = Path("north.csv").read_text(encoding="utf-8").splitlines()[0]
    Path("short.csv").write_text(header + "\n40\n", encoding="utf-8")
    code, _, err = run("hospital", "predict", "state", "short.csv")
    assert code == 2 and "short.csv row 2" in err and not Path("short.predictions.csv").exists()


def test_nothing_of_torch_or_the_network_is_needed(house: House) -> None:
    house.end(house.bundle())
    code = (
        "import socket, sys\n"
        "def no(*_, **__): raise AssertionError('offline')\n"
        "socket.socket.connect = no\n"
        "from pate_fed.cli.main import main\n"
        "assert main(['hospital', 'predict', 'state', 'north.csv']) == 0\n"
        "heavy = {'torch', 'sklearn', 'flwr', 'ray'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def _theirs(house: House) -> bytes:
    return house.bundle(Ed25519PrivateKey.generate())


def _of_another_study(house: House) -> bytes:
    return house.bundle(facts=replace(_facts(TERMS), terms_digest="ff" * 32))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (_theirs, "signed by another key"),
        (_of_another_study, "is of another study"),
        (lambda house: house.bundle()[:-7], "is cut"),
        (lambda house: house.bundle().replace(b"student 1 ", b"student 2 "), "has format 2"),
        (lambda house: b"PK" + house.bundle(), "is no student's bundle"),
        (lambda house: house.bundle().replace(b"heart", b"heard"), "was changed"),
    ],
)
def test_what_does_not_check_is_logged_not_kept_and_never_used(
    house: House, run: Any, made: Callable[[House], bytes], words: str
) -> None:
    house.end(good := house.bundle())
    *_, refused, ended = house.end(bad := made(house))
    assert refused["event"] == "student refused" and words in refused["why"]
    assert ended["event"] == "ended"
    kept = house.state / BUNDLE_FILE
    assert kept.read_bytes() == good and [*house.state.glob("*.part")] == []
    kept.write_bytes(bad)  # as a backup or a thief could
    code, out, err = run("hospital", "predict", "state", "north.csv")
    assert (code, out) == (6, "") and f"state/{BUNDLE_FILE}: " in err
    assert words in err and "50,5" not in err and not Path("north.predictions.csv").exists()


def test_what_is_not_there_is_said(house: House, run: Any, tmp_path: Path) -> None:
    code, _, err = run("hospital", "predict", "state", "north.csv")
    assert code == 2 and "no student came; a coordinator with keys sends it" in err
    house.end(house.bundle())
    (house.state / LOCAL_SITE).unlink()
    code, _, err = run("hospital", "predict", "state")
    assert code == 2 and "no keys to check a student with; give --dir" in err
    assert run("hospital", "predict", "state", "--dir", "identity").code == 0
    code, _, err = run("hospital", "predict", "state", "none.csv", "--dir", "identity")
    assert code == 2 and "none.csv: there is no such file" in err
    code, _, err = run("hospital", "predict", "state", "north.csv", "--dir", "identity", "--out", "no/a.csv")
    assert code == 2 and "--out no/a.csv: no file can be written there" in err
    Path("cut.csv").write_text("age,sex\n50,m\n51,m,3\n")
    code, _, err = run("hospital", "predict", "state", "cut.csv", "--dir", "identity")
    assert code == 2 and "cut.csv row 3: 3 values for 2 columns" in err
    assert not Path("cut.predictions.csv").exists()
    (house.state / BUNDLE_FILE).write_bytes(b"")
    code, _, err = run("hospital", "predict", "state", "--dir", "identity")
    assert code == 6 and "is empty" in err


def test_a_hospital_that_left_or_has_no_keys_keeps_no_student(house: House) -> None:
    house.settings = replace(house.settings, sum_key=None)
    refused, _ = house.end(house.bundle())
    assert "no identity to check it with" in refused["why"]
    (house.state / "left").touch()
    assert [each["event"] for each in house.end(house.bundle())][2:] == ["ended"]
    assert not (house.state / BUNDLE_FILE).exists()


def _write_dicom(path: Path, value: int) -> None:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    found = Dataset()
    found.file_meta = FileMetaDataset()
    found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.file_meta.MediaStorageSOPClassUID = found.SOPClassUID = CTImageStorage
    found.file_meta.MediaStorageSOPInstanceUID = found.SOPInstanceUID = generate_uid()
    found.Rows = found.Columns = 8
    found.SamplesPerPixel, found.PhotometricInterpretation = 1, "MONOCHROME2"
    found.BitsAllocated = found.BitsStored = 16
    found.HighBit, found.PixelRepresentation = 15, 1
    found.PixelData = np.full((8, 8), value, dtype=np.int16).tobytes()
    found.save_as(path, enforce_file_format=True)


def test_a_student_of_images_answers_about_folders_of_them(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pate_fed.learning.settings import StudentSettings
    from pate_fed.learning.students.train import train_student
    from pate_fed.learning.students.trainer import LabelledPool

    monkeypatch.chdir(tmp_path)
    terms = make_terms(study="scans", num_classes=2, classes=("dark", "bright"))
    house = House(tmp_path, terms)
    labels = np.arange(40) % 2
    images = np.where(labels[:, None, None, None] == 1, 200, 20) * np.ones((1, 8, 8, 1))
    pool = LabelledPool(
        images=images.astype(np.uint8), labelled_index=np.arange(40), labels=labels, num_classes=2
    )
    student = train_student(pool, StudentSettings(name="supervised", epochs=20, batch_size=10), seed=0)
    facts = replace(_facts(terms), window=(0.0, 400.0))
    house.end(pack_student(student, facts, house.authority.ledger_key()))
    for name, shade in (("dark", 25), ("bright", 190)):
        Path("scans", name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8), shade, dtype=np.uint8)).save(f"scans/{name}/a.png")
    _write_dicom(Path("scans/bright/b.dcm"), 390)  # of 16 bits a value, which the study's window makes bright
    code, out, err = run("hospital", "predict", "state", "scans")
    assert (code, err) == (0, "") and "accuracy: 3 of 3 right" in out and "scans: 3 images" in out
    head, *rows = csv.reader(Path("scans.predictions.csv").read_text().splitlines())
    assert head == ["file", "image", "dark", "bright", "predicted"]
    named = [("bright/a.png", "bright"), ("bright/b.dcm", "bright"), ("dark/a.png", "dark")]
    assert [(row[0], row[4]) for row in rows] == named


def test_names_of_classes_never_hide_the_prediction(house: House, run: Any) -> None:
    table = replace(TABLE, classes=("predicted", "row"))
    house.terms = TERMS
    house.end(house.bundle(facts=replace(_facts(TERMS), classes=table.classes, table=table)))
    Path("a.csv").write_text("age,sex\n50,m\n")
    assert run("hospital", "predict", "state", "a.csv").code == 0
    head, _ = csv.reader(Path("a.predictions.csv").read_text().splitlines())
    assert head == ["row", "predicted", "row", "predicted_"]


def test_a_copy_of_the_records_is_read_with_their_settings(house: House, run: Any) -> None:
    house.end(house.bundle())
    text = RECORDS.replace("m;", "x;")
    Path("north.csv").write_text(text)
    Path("north.csv.toml").write_text('[columns.sex]\nmap = { x = "m" }\n')
    Path("copy.csv").write_text(text)
    for name, words in (("north.csv", ""), ("copy.csv", "copy.csv: read with the settings of this hospital")):
        code, out, _ = run("hospital", "predict", "state", name)
        assert code == 0 and words in out and ("read with the settings" in out) == bool(words)
    assert Path("copy.predictions.csv").read_bytes() == Path("north.predictions.csv").read_bytes()
    Path("copy.csv.toml").touch()
    code, out, _ = run("hospital", "predict", "state", "copy.csv", "--out", "plain.csv")
    assert code == 0 and "read with the settings" not in out
    assert Path("plain.csv").read_bytes() != Path("north.predictions.csv").read_bytes()


def _withdraw(house: House, run: Any) -> Path:
    """The coordinator's notice about the student that came, and what its command said."""
    coordinator = Path("run")
    coordinator.mkdir(exist_ok=True)
    (coordinator / BUNDLE_FILE).write_bytes((house.state / BUNDLE_FILE).read_bytes())
    code, out, err = run("study", "withdraw", "run", "--reason", "wrong\x1b labels", "--dir", "authority")
    assert (code, err) == (0, "")
    [notice] = coordinator.glob("withdrawn-*.json")
    assert f"wrote {notice}: send it to every hospital" in out
    return notice


def test_a_withdrawn_student_is_told_once_its_signed_notice_is_here(house: House, run: Any) -> None:
    house.end(house.bundle())
    notice = _withdraw(house, run)
    assert "WITHDRAWN" not in run("hospital", "predict", "state").out
    told = f"WITHDRAWN by the study's coordinator on {json.loads(notice.read_text())['notice']['day']}: wrong"
    assert run("hospital", "predict", "state", "--withdrawn", str(notice)).out.startswith(told)
    code, out, _ = run("hospital", "predict", "state", "north.csv")
    assert code == 0 and out.startswith(told) and "\x1b" not in out
    assert stat.S_IMODE((house.state / notice.name).stat().st_mode) == 0o600
    assert told in run("predict", "run/student.bundle", "north.csv").err  # a notice beside the bundle
    house.end(house.bundle(facts=replace(_facts(TERMS), hospitals=3)))  # another student came in its place
    assert "WITHDRAWN" not in run("hospital", "predict", "state").out


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda text: text.replace("wrong", "right"), "was changed"),
        (lambda text: text[:50], "or damaged"),
        (lambda text: "[" * 60_000, "or damaged"),
        (lambda text: '{"notice": {}, "signature": 3}', "or damaged"),
    ],
)
def test_a_notice_that_does_not_fit_is_refused(
    spoil: Callable[[str], str], says: str, house: House, run: Any
) -> None:
    house.end(house.bundle())
    notice = _withdraw(house, run)
    notice.write_text(spoil(notice.read_text()))
    code, _, err = run("hospital", "predict", "state", "--withdrawn", str(notice))
    assert code == 6 and says in err and not list(house.state.glob("withdrawn-*"))


def test_a_notice_is_of_one_student_and_one_coordinator(house: House, run: Any) -> None:
    house.end(house.bundle())
    notice = _withdraw(house, run)
    house.end(house.bundle(facts=replace(_facts(TERMS), hospitals=3)))
    code, _, err = run("hospital", "predict", "state", "--withdrawn", str(notice))
    assert code == 6 and "is about another student" in err
    (Path("run") / BUNDLE_FILE).write_bytes(house.bundle(key=Ed25519PrivateKey.generate()))
    code, _, err = run("study", "withdraw", "run", "--reason", "x", "--dir", "authority")
    assert code == 6 and "signed by another key" in err


@pytest.mark.parametrize("reason", ["", " ", "x" * 1001])
def test_a_notice_says_why_and_has_room_for_it(reason: str, house: House, run: Any) -> None:
    house.end(house.bundle())
    _withdraw(house, run).unlink()
    code, _, err = run("study", "withdraw", "run", "--reason", reason, "--dir", "authority")
    assert (
        code == 2 and "a sentence of 1 to 1000 is meant" in err and not list(Path("run").glob("withdrawn-*"))
    )


def _numbers(text: str) -> set[float]:
    return {float(each.replace(",", "").rstrip(".")) for each in re.findall(r"(?<!\w)\d[\d,.]*(?!\w)", text)}


def test_papers_say_what_terms_and_student_say_and_leave_the_rest_open(house: House, run: Any) -> None:
    """Every number in them is one of the bundle's or the terms', but for the bet that ε = 1 allows."""
    content = house.bundle()
    house.end(content)
    code, _, err = run("hospital", "predict", "state", "--papers", "papers")
    assert code == 2 and "state: the study's terms are gone" in err and not Path("papers").exists()
    (house.state / TERMS_FILE).write_text(TERMS.to_json())
    assert run("hospital", "predict", "state", "--papers", "papers").code == 0
    known = run("hospital", "predict", "state").out + TERMS.to_json() + " 73.1 50 256 1. 2. 3. 4. "
    pages = {path.stem: path.read_text() for path in Path("papers").glob("*.md")}
    assert sorted(pages) == ["board", "ethics", "impact-assessment", "model-card"]
    for name, page in pages.items():
        assert "ε = 1" in page and page.count(_TO_FILL) >= 2, name
        assert "accuracy" not in page.lower() and "tested on" not in page.lower(), name
        assert _numbers(page) <= _numbers(known), name
    assert "| The coordinator | Unbounded: no promise." in pages["model-card"]
    card = json.loads(Path("papers/model-card.cdx.json").read_text())["components"][0]
    assert card["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
    assert card["modelCard"]["quantitativeAnalysis"]["performanceMetrics"] == []
    facts = {each["name"]: each["value"] for each in card["modelCard"]["properties"]}
    assert facts["pate_fed:epsilon"] == "1" and facts["pate_fed:ledger_head"] == "cd" * 32
    assert facts["pate_fed:protects"] == "one patient"
