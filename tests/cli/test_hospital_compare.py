"""`pate-fed hospital compare`: a hospital's own model beside the student, by figures that stay at home."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import make_terms
from planted import draw_planted, found_in
from report_page import Page

import clients.local
from clients.local import POOL_FILE, local_site
from clients.state_dir import LOCAL_SITE, TERMS_FILE, LocalSettings
from pate_fed.cli import hospital_compare
from pate_fed.cli.hospital_compare import _figures, _flatters, _Tested, _trainer
from pate_fed.cli.hospital_open import HospitalPages
from pate_fed.cli.main import make_parser
from pate_fed.data import Schema
from pate_fed.identity import Authority, HospitalIdentity, make_request
from pate_fed.identity.bundle import BUNDLE_FILE, StudentFacts, pack_student
from pate_fed.learning import TeacherSettings
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.learning.students.class_sums import fit_sums_student
from pate_fed.report.accuracy import Difference, Ranking

TABLE = Schema(
    label="ill",
    classes=("no", "yes"),
    columns=(("age", ()), ("dose", ()), ("sex", ("f", "m"))),
    patient="patient",
)
TERMS = make_terms(
    study="heart",
    num_classes=2,
    image_shape=(4,),
    classes=("no", "yes"),
    table=TABLE,
    unit="patient",
    teacher=TeacherSettings(name="random-forest"),
)


def _draw(count: int, seed: int, *, steep: float = 1.0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows float64 (n, 4), of which the last two are a category's, and labels int64 (n,)."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(count, 2)) * [10, 1] + [60, 0]
    labels = (steep * ((numbers[:, 0] - 60) / 8 + numbers[:, 1]) + rng.logistic(size=count) > 0).astype(int)
    return np.concatenate([numbers, np.eye(2)[rng.integers(0, 2, count)]], axis=1), labels


def _write(path: Path, count: int, seed: int, *, first: int = 0, steep: float = 1.0) -> None:
    rows, labels = _draw(count, seed, steep=steep)
    lines = [
        f"p{first + number // 2},{row[0]:.3f},{row[1]:.3f},{'fm'[int(row[3])]},{('no', 'yes')[label]}"
        for number, (row, label) in enumerate(zip(rows, labels, strict=True))
    ]
    path.write_text("\n".join(["patient,age,dose,sex,ill", *lines, ""]))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hospital after its study, whose student was made of other hospitals' records."""
    monkeypatch.chdir(tmp_path)
    clients.local._dataset.cache_clear()  # a folder that a test left has its name again
    _write(Path("north.csv"), 300, 1)
    authority = Authority.init(tmp_path / "authority", address="a:1", terms=TERMS.to_json(), days=9)
    authority.admit(make_request(Path("keys"), "north"), days=9).write(Path("north.admission"))
    HospitalIdentity.offered(Path("keys"), Path("north.admission")).take()
    folder = tmp_path / "state"
    folder.mkdir()
    pool, _ = _draw(300, 2)
    np.save(folder / POOL_FILE, pool)
    (folder / TERMS_FILE).write_text(TERMS.to_json())
    given = LocalSettings(
        hospital="north",
        data=str(tmp_path / "north.csv"),
        state_dir=folder,
        sum_key=(tmp_path / "keys/sum.key"),
    )
    given.write(folder / LOCAL_SITE)
    features = build_feature_map(FeatureSettings(name="linear-and-kernel", columns=(1, 1, 2)), pool)
    rows, labels = _draw(3000, 3)
    sums = features.contributions(rows, labels, num_classes=2)
    student = fit_sums_student(sums, features, pool, sigma=1000.0)
    facts = StudentFacts(
        study="heart",
        terms_digest=TERMS.digest,
        ledger_head="cd" * 32,
        epsilon=0.5,
        delta=1e-5,
        protects="one patient",
        private=True,
        hospitals=4,
        licence="",
        classes=TERMS.classes,
        shape=TERMS.image_shape,
        table=TABLE,
    )
    (folder / BUNDLE_FILE).write_bytes(pack_student(student, facts, authority.ledger_key()))
    return folder


def test_terms_that_are_no_text_are_told_as_such(state: Path, run: Any) -> None:
    (state / TERMS_FILE).write_bytes(b"\xff\xfe")
    code, _, err = run("hospital", "compare", "state")
    assert code == 2 and "the study's terms cannot be read (not UTF-8 text)" in err


def test_both_are_measured_and_kept_at_home(state: Path, run: Any) -> None:
    code, out, err = run("hospital", "compare", "state", "--prevalence", "0.1")
    assert (code, err) == (0, "")
    assert re.match(r"(TOGETHER IS BETTER HERE|NO DIFFERENCE THAT SO MANY RECORDS SHOW.*): AUC [+-]0\.", out)
    assert "on 300 records in the study of 150 patients: intervals count records" in out
    assert "at ε=0.5, δ=1e-5 for one patient it is right in at least 0." in out
    kept = json.loads((state / "compare.json").read_text())
    for who in ("alone", "together"):
        auc, (low, high) = kept[who]["AUC"]
        assert 0.6 < low < auc < high < 0.85 and 0.3 < kept[who]["calibration slope"][0] < 2
        ppv, (least, most) = kept[who]["PPV at that prevalence"]
        assert 0.15 < least < ppv < most < 0.4 < 0.9 < kept[who]["NPV at that prevalence"][0]
    assert (kept["records"], kept["patients"], kept["tested_on"]) == (300, 150, "in the study")
    picture = (state / "compare.svg").read_text()
    assert picture.startswith("<svg ") and "xmlns" in picture and "sensitivity" in picture
    assert {path.stat().st_mode & 0o777 for path in state.glob("compare.*")} == {0o600}
    opened = make_parser().parse_args(["hospital", "open", "--dir", "keys", "--state-dir", "state"])
    page = Page(HospitalPages(opened).render("student"))
    told = " ".join(out.split("\nkept for this user")[0].split())
    assert told in " ".join(page.words.split()) and "the student of the study 'heart'" in page.words
    assert "data:image/svg+xml;base64," in HospitalPages(opened).render("student")
    (state / "compare.svg").unlink()
    assert "hospital compare` kept cannot be read" in Page(HospitalPages(opened).render("student")).words


def test_where_alone_is_better_it_is_said_first(state: Path, run: Any) -> None:
    """A hospital whose illness goes the other way: the student of the others is worse than a guess."""
    _write(Path("north.csv"), 300, 1, steep=-1.0)
    code, out, _ = run("hospital", "compare", "state")
    assert code == 0 and out.startswith("ALONE IS BETTER HERE: AUC -0.")


def test_records_that_took_no_part_do_not_flatter(state: Path, run: Any) -> None:
    """Nor do those of patients that did; a copy is read with the settings of the study's own."""
    text = Path("north.csv").read_text().replace(",f,", ",w,")
    Path("north.csv").write_text(text)
    Path("north.csv.toml").write_text('[columns.sex]\nmap = { w = "f" }\n')
    _write(Path("new.csv"), 100, 5, first=140)
    Path("new.csv").write_text(Path("new.csv").read_text().replace(",f,", ",w,"))
    code, out, err = run("hospital", "compare", "state", "new.csv")
    assert (code, err) == (0, "")
    assert "new.csv: read with the settings of this hospital's own records" in out
    assert "on 80 records not in the study of 40 patients" in out
    assert "left out: 20 records of patients that are in the study's records" in out
    assert "flatter" not in out
    code, _, err = run("hospital", "compare", "state", "north.csv")
    assert code == 2 and "no record not in the study is left to measure on; give RECORDS of" in err


def test_it_needs_no_torch_and_tells_no_text_of_a_record(state: Path) -> None:
    texts = draw_planted(300)
    header, *lines = Path("north.csv").read_text().splitlines()
    marked = [f"{each.text.replace(chr(34), '')!r}".replace(",", " ") for each in texts]
    told = [f'"{mark}",{line.split(",", 1)[1]}' for mark, line in zip(marked, lines, strict=True)]
    Path("north.csv").write_text("\n".join([header, *told, ""]))
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] in ('torch', 'flwr'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from pate_fed.cli.main import main\n"
        "sys.exit(main(['hospital', 'compare', 'state']))\n"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    said = made.stdout + made.stderr + "".join(path.read_text() for path in state.glob("compare.*"))
    assert found_in(said.encode(), texts) == set()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--prevalence", "1"), "--prevalence 1: a share above 0 and below 1 is meant"),
        ((), "records of 3 patients: 5 at least are meant"),
        (("none.csv",), "RECORDS none.csv: there is no such file"),
    ],
)
def test_what_is_wrong_is_said(options: tuple[str, ...], words: str, state: Path, run: Any) -> None:
    _write(Path("north.csv"), 6 if "at least" in words else 100, 1)
    code, _, err = run("hospital", "compare", "state", *options)
    assert code == 2 and words in err


def test_the_difference_is_that_of_the_areas_and_its_interval_holds() -> None:
    """In 200 draws of two models of equal worth some 95 % of the intervals hold 0."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        truth = rng.integers(0, 2, 200)
        shared = rng.normal(size=200) + truth
        models = [np.stack([np.zeros(200), shared + rng.normal(size=200)], axis=1) for _ in range(2)]
        found = Difference.of(models[0], models[1], truth, ranked=True)
        areas = [Ranking.of(each, truth) for each in models]
        assert areas[0] and areas[1] and abs(found.by - (areas[0].auc - areas[1].auc)) < 1e-12
        held += found.interval[0] <= 0 <= found.interval[1]
    assert 182 <= held <= 198
    right = Difference.of(np.eye(3)[[0, 1, 2, 2]], np.eye(3)[[0, 1, 2, 0]], np.arange(4) % 3, ranked=False)
    assert right.what == "balanced accuracy" and abs(right.by - 0.0) > 0.1


def test_where_the_terms_hold_records_out_these_alone_test(
    state: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hospital_compare, "held_out_share", lambda terms: 0.3)
    code, out, _ = run("hospital", "compare", "state")
    found = re.search(r"on (\d+) records held out of the study of (\d+) patients", out)
    assert code == 0 and found and 50 < int(found[1]) < 140 and int(found[1]) == 2 * int(found[2])
    assert "flatter" not in out
    site = local_site(LocalSettings.read(state / LOCAL_SITE))
    assert site.held_out(0.3).sum() == int(found[1])  # the hospital's own key says which


def test_of_images_its_own_model_ranks_and_of_more_classes_each_is_told() -> None:
    """The same areas as of what made the scores, but nothing of probabilities that are none."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 120)
    images = (rng.integers(0, 200, (120, 12, 12, 1)) + truth[:, None, None, None] * 40).astype(np.uint8)
    site: Any = SimpleNamespace(dataset=SimpleNamespace(public_images=images))
    terms: Any = SimpleNamespace(num_classes=2, table=None)
    scores = _trainer(site, terms)(images[:60], truth[:60])(images[60:])
    found, area = _figures(scores, truth[60:], 0.1), Ranking.of(scores, truth[60:])
    assert area is not None and found["AUC"] == (area.auc, area.interval) and area.auc > 0.7
    assert "PPV at that prevalence" in found and not {"calibration slope", "calibration error"} & {*found}
    hard = _figures(np.eye(2)[scores.argmax(axis=1)], truth[60:], None)
    assert {*hard} == {"balanced accuracy", "accuracy"} and hard["accuracy"] == found["accuracy"]
    three = np.array([0, 0, 1, 2, 2, 2])
    told = _figures(np.eye(3)[[0, 1, 1, 2, 2, 0]] * 0.4 + 0.2, three, None, ("well", "ill"))
    values = {name: value for name, (value, _) in told.items()}
    assert (values["accuracy on well"], values["accuracy on ill"], values["accuracy on 2"]) == (0.5, 1, 2 / 3)
    assert all(
        ends and ends[0] < told[name][0] <= ends[1] for name, (_, ends) in told.items() if " on " in name
    )


@pytest.mark.parametrize(("epsilon", "says"), [(0.5, "at least 0.6"), (3.0, ""), (900.0, ""), (None, "")])
def test_a_bound_that_says_nothing_is_not_said(epsilon: float | None, says: str) -> None:
    empty = np.zeros(1, dtype=np.int64)
    tested = _Tested(which="in the study", inputs=empty, labels=empty, patients=empty, alone=np.zeros((1, 2)))
    facts: Any = SimpleNamespace(epsilon=epsilon, delta=1e-5)
    lines = " ".join(_flatters(facts, "record", tested, {"together": {"accuracy": (0.8, None)}}))
    assert ("no ε bounds by how much" in lines) == (not says) and says in lines and "0.000" not in lines
