"""A student's bundle: it comes back as it was, and whatever was done to it is refused with a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.data import Schema
from pate_fed.errors import InputError, IntegrityError
from pate_fed.identity import bundle
from pate_fed.identity.bundle import Bundle, StudentFacts, covered_by, pack_student
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.learning.settings import StudentSettings
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.learning.teachers.forests import train_forest

KEY = Ed25519PrivateKey.generate()
TABLE = Schema(label="ill", classes=("no", "yes"), columns=(("age", ()), ("sex", ("f", "m"))))
FACTS = StudentFacts(
    study="heart",
    terms_digest="ab" * 32,
    ledger_head="cd" * 32,
    epsilon=1.0,
    delta=1e-5,
    protects="one patient",
    private=True,
    hospitals=4,
    licence="the hospitals that took part",
    classes=("no", "yes"),
    shape=(3,),
    table=TABLE,
)
ROWS = np.random.default_rng(0).normal(size=(40, 3))
ROWS[:, 1:] = np.eye(2)[np.arange(40) % 2]


def _sums() -> SumsStudent:
    features = build_feature_map(FeatureSettings(name="linear-and-kernel", columns=(1, 2)), ROWS)
    weights = np.random.default_rng(1).normal(size=(features.dimension, 2))
    return SumsStudent(features, weights, sharpness=2.0, offset=np.array([0.1, -0.2]))


def _network() -> Any:
    from pate_fed.learning.students.train import train_student
    from pate_fed.learning.students.trainer import LabelledPool

    images, labels = np.full((20, 8, 8, 1), 9, dtype=np.uint8), np.arange(20) % 2
    images[labels == 1] = 200
    pool = LabelledPool(images=images, labelled_index=np.arange(20), labels=labels, num_classes=2)
    return train_student(pool, StudentSettings(name="gan", epochs=1, batch_size=10), seed=0)


@pytest.mark.parametrize("kind", ["class-sums", "forest", "network"])
def test_a_student_predicts_from_its_bundle_as_before(kind: str) -> None:
    inputs: Any = ROWS
    if kind == "network":
        student, inputs = _network(), np.full((3, 8, 8, 1), 50, dtype=np.uint8)
    else:
        labels = np.arange(40) % 2
        student = _sums() if kind == "class-sums" else train_forest(ROWS, labels, num_classes=2, seed=0)
    content = pack_student(student, FACTS, KEY, covered=covered_by(ROWS))
    found = Bundle.read(content, where="x", public=KEY.public_key(), terms_digest=FACTS.terms_digest)
    assert found.facts == replace(FACTS, kind=kind)
    assert found.covered is not None and (found.covered[:, 1:] == [[0, 0], [1, 1]]).all()
    assert np.array_equal(found.student("x").predict_proba(inputs), student.predict_proba(inputs))
    assert content == pack_student(
        student, FACTS, KEY, covered=covered_by(ROWS)
    )  # the same for all hospitals
    assert b"pickle" not in content


def _with_line(content: bytes, place: int, word: str) -> bytes:
    """The bundle with another word in its first line."""
    line, _, rest = content.partition(b"\n")
    words = line.split(b" ")
    words[place] = word.encode()
    return b" ".join(words) + b"\n" + rest


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: b"", "is empty; what a coordinator sends"),
        (lambda content: b"PK\x03\x04" + content, "is no student's bundle"),
        (lambda content: b"\n" * 500 + content, "is no student's bundle"),
        (lambda content: content[:30], "in its first line"),
        (lambda content: content[:-1], "is cut: .* bytes follow its first line, which says"),
        (lambda content: content + b" ", "was changed: .* bytes follow"),
        (lambda content: content.replace(b'"heart"', b'"heard"'), "its signature does not fit"),
        (lambda content: content[:-9] + b"\x01" + content[-8:], "its signature does not fit"),
        (lambda content: _with_line(content, 5, "00" * 64), "its signature does not fit"),
        (lambda content: _with_line(content, 5, "x"), "its signature does not fit"),
        (lambda content: _with_line(content, 4, "00" * 32), "signed by another key"),
        (lambda content: _with_line(content, 3, "9" * 300), "is no student's bundle"),
        (lambda content: _with_line(content, 2, "2"), "has format 2, and this release .* reads format 1"),
    ],
)
def test_what_was_changed_is_refused_with_a_sentence(damage: Any, words: str) -> None:
    content = damage(pack_student(_sums(), FACTS, KEY))
    with pytest.raises(IntegrityError, match=f"^x: .*{words}"):
        Bundle.read(content, where="x", public=KEY.public_key(), terms_digest=FACTS.terms_digest)


def test_another_authoritys_and_another_studys_are_refused() -> None:
    theirs = pack_student(_sums(), FACTS, Ed25519PrivateKey.generate())
    with pytest.raises(
        IntegrityError, match=r"signed by another key .* the authority signed in this hospital"
    ):
        Bundle.read(theirs, where="x", public=KEY.public_key())
    assert Bundle.read(theirs, where="x").signer != KEY.public_key().public_bytes_raw().hex()  # nobody pinned
    with pytest.raises(IntegrityError, match=r"is of another study \(terms abab.*\(terms ffff"):
        Bundle.read(pack_student(_sums(), FACTS, KEY), where="x", terms_digest="ff" * 32)


@pytest.mark.parametrize("array", ["student/weights", "student/feature_map", "covered"])
def test_a_signed_bundle_that_holds_nonsense_is_refused(array: str) -> None:
    """A coordinator of another release, or one that lies: nothing of it is an error of the program."""

    class Wrong:
        kind = "class-sums"
        feature_map = _sums().feature_map

        def to_arrays(self) -> dict[str, Any]:
            return {**_sums().to_arrays(), array.removeprefix("student/"): np.zeros(3)}

    content = pack_student(Wrong(), FACTS, KEY, covered=np.zeros(3) if array == "covered" else None)
    with pytest.raises(IntegrityError, match=r"x: |the message: "):
        Bundle.read(content, where="x").student("x")


def test_numbers_that_numpy_does_not_know_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(arrays: dict[str, Any]) -> bytes:
        header = json.dumps({"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
        return len(header).to_bytes(8, "little") + header + b"\0\0"

    monkeypatch.setattr("safetensors.numpy.save", save)
    content = pack_student(_NoMap(), FACTS, KEY)
    with pytest.raises(IntegrityError, match="signed, but not written as"):
        Bundle.read(content, where="x")


class _NoMap:
    kind, feature_map = "class-sums", _sums().feature_map

    def to_arrays(self) -> dict[str, Any]:
        return {}


def test_what_no_bundle_can_hold_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="code of your own"):
        pack_student(object(), FACTS, KEY)
    own = _sums()
    own.feature_map.settings = replace(own.feature_map.settings, name="mine:make")
    with pytest.raises(InputError, match="code of your own"):
        pack_student(own, FACTS, KEY)
    monkeypatch.setattr(bundle, "MOST_STUDENT", 1000)
    with pytest.raises(InputError, match=r"the student takes .* at most"):
        pack_student(_sums(), FACTS, KEY)


@pytest.mark.parametrize("forest", [False, True])
def test_students_of_tables_are_read_without_torch(tmp_path: Path, forest: bool) -> None:
    student = train_forest(ROWS, np.arange(40) % 2, num_classes=2, seed=0) if forest else _sums()
    (tmp_path / "student.bundle").write_bytes(pack_student(student, FACTS, KEY))
    code = (
        "import sys, numpy as np\n"
        "from pate_fed.identity.bundle import Bundle\n"
        "student = Bundle.read(open('student.bundle', 'rb').read(), where='x').student('x')\n"
        "assert student.predict_proba(np.zeros((2, 3))).shape == (2, 2)\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
