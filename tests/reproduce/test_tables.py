"""PATE++'s tables: Proposition 2, what they consist of, and all in small."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import Dataset
from pate_fed.learning import StudentSettings
from pate_fed.reproduce import (
    Reproduction,
    reproduce,
    tables,
    votes,
)


@pytest.mark.parametrize("epsilon", [0.5, 4.05, 5.04])
def test_proposition_2_at_its_best_order_costs_what_is_wanted(epsilon: float) -> None:
    orders = 1 + np.geomspace(1e-3, 1e4, 200_001)
    c = 2200 / tables.proposition2_sigma(answered=2200, epsilon=epsilon, delta=1e-5) ** 2
    assert np.min(orders * c + math.log(1e5) / (orders - 1)) == pytest.approx(epsilon, rel=1e-6)


def test_the_tables_are_the_papers() -> None:
    plan = Reproduction(data_dir=Path(), out_dir=Path(), seeds=2)
    tasks = list(tables._tasks(plan))
    assert len(tasks) == len(set(tasks)) == 2 * len(tables.PAPER)
    assert {task[:4] for task in tasks} == set(tables.PAPER)
    sizes = [
        sum(1 for _ in tables._tasks(Reproduction(data_dir=Path(), out_dir=Path(), seeds=1, tables=(t,))))
        for t in (1, 2, 3, 4, 5)
    ]
    assert sizes == [8, 6, 5, 10, 4]  # β 0.2 and τ 0.318 are already in table I; the last two are not its


def test_the_tables_students_are_the_papers_or_the_quick_ones() -> None:
    def settings(*, paper: bool) -> StudentSettings:
        plan = Reproduction(data_dir=None, out_dir=Path(), paper=paper)
        return tables._settings(plan, "pate++", 0.2, 0.318)

    scale = attrgetter("network", "epochs", "learning_rate")
    assert scale(settings(paper=True)) == ("deep-cnn", 400, 0.01)
    assert scale(settings(paper=False)) == ("small-cnn", 20, 6e-3)
    plan = Reproduction(data_dir=None, out_dir=Path())
    ours = tables._settings(plan, "gan on the encoder", None, None)
    assert (ours.name, *scale(ours), ours.dropout) == ("gan", "encoder", 20, 6e-3, None)
    [studys, head] = [
        tables._settings(plan, key[1], *key[2:]) for key in tables._of_table()[5] if key[0] == 4.05
    ]
    assert studys == StudentSettings(name="pate++", network="small-cnn")
    assert head == StudentSettings(name="encoder-head")
    for each in (settings(paper=True), settings(paper=False)):
        assert (each.name, each.noise_rate, each.tau) == ("pate++", 0.2, 0.318)
        assert (each.ema_decay, each.dropout) == (0.0, 0.0)


@pytest.fixture
def tiny(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    """Table I's students at one ε, two epochs each."""
    whole = tables._settings
    monkeypatch.setattr(
        tables, "_settings", lambda *given: replace(whole(*given), epochs=2, batch_size=50, ramp_epochs=1)
    )
    four = {key: value for key, value in PAPER.items() if key[0] == 4.05 and key[2] in (None, 0.2)}
    monkeypatch.setattr(tables, "PAPER", {key: four[key] for key in four if key[3] in (None, 0.318)})
    return replace(small, tables=(1,))


PAPER = dict(tables.PAPER)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_table_1_in_small(tiny: Reproduction) -> None:
    lines = reproduce("pate++-fashion-mnist", tiny)
    rows = _rows(tiny.file("runs", "csv"))
    assert [row["student"] for row in rows] == ["gan", "co-teaching", "pate+", "pate++"]
    assert tiny.file("totals", "npz").exists()
    assert [row["removed"] != "" for row in rows] == [False, False, False, True]
    assert 0 <= int(rows[3]["removed"]) <= 12  # τ 0.318 of 40
    assert rows[0]["accuracy"] == rows[0]["accuracy_single"]  # PATE is one network
    assert all("single" in lines[place] for place in (0, 5))
    assert lines[1].split()[:4] == ["ε", "4.05,", "gan", "74.8"]
    assert tiny.file("tables", "txt").read_text(encoding="utf-8").splitlines() == lines


def test_the_pate_plus_plus_of_the_tables_is_a_studys_own(
    tiny: Reproduction, loaded: dict[str, Dataset]
) -> None:
    from pate_fed.learning.students.train import train_student
    from pate_fed.learning.students.trainer import LabelledPool

    data = loaded["fashion-mnist"]
    totals = np.load(tiny.data_dir / "a.npy")  # type: ignore[operator]
    row = tables._train(tiny, data, {"small-cnn": totals}, (4.05, "pate++", 0.2, 0.318, 3))
    given = tables.released_labels(totals, epsilon=4.05, seed=3)
    images = data.public_images[:200]
    pool = LabelledPool(images=images, labelled_index=given.index, labels=given.label, num_classes=10)
    student = train_student(pool, tables._settings(tiny, "pate++", 0.2, 0.318), seed=3)
    assert row.accuracy == np.mean(student.predict(data.public_images[200:]) == data.public_labels[200:])
    assert student.removed is not None and row.removed == student.removed.sum()


def test_the_students_on_an_encoder_learn_from_light_teachers(tiny: Reproduction) -> None:
    lines = reproduce("pate++-fashion-mnist", replace(tiny, tables=(4,)))
    assert (tiny.out_dir / "totals-encoder-head.npz").exists()
    assert not tiny.file("totals", "npz").exists()  # nobody asked for the paper's teachers
    shown = [line for line in lines if line.startswith("ε") and " on the encoder" in line]
    assert len(shown) == len(_rows(tiny.file("runs", "csv"))) == 6 and all(" - " in line for line in shown)


def test_each_student_is_told_how_many_of_its_labels_were_wrong(
    tiny: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAPER", {(4.05, "supervised", None, None): 74.8})
    truth = tiny.load("fashion-mnist").public_labels[:200]
    tiny.out_dir.mkdir()
    for name, right in (("totals-quick.npz", True), ("totals-encoder-head.npz", False)):
        kept = 5000 * np.eye(10, dtype=np.int64)[truth if right else (truth + 1) % 10]
        np.savez(tiny.out_dir / name, totals=kept)
    both = replace(tiny, tables=(1, 4))
    wrong = {}
    for plan in (both, replace(both, totals=tiny.out_dir / "totals-quick.npz", out_dir=tiny.out_dir / "o")):
        reproduce("pate++-fashion-mnist", plan)
        wrong[plan] = {row["student"]: row["labels_wrong"] for row in _rows(plan.file("runs", "csv"))}
    first, given = wrong.values()
    assert first["supervised"] == "0.0" and first["supervised on the encoder"] == "1.0"
    assert given["supervised on the encoder"] == "0.0"


def test_the_kept_totals_are_of_these_images(shared: Path) -> None:
    """Totals of 250 small CNNs of 240 images; with them the tables need no teachers (`--totals`)."""
    from pate_fed.data import load_dataset

    totals = votes.read_totals(Path(__file__).parents[1] / "files" / "fashion-mnist-totals.npz")
    assert totals.shape == (9000, 10) and np.all(totals.sum(axis=1) == 250)
    truth = load_dataset("fashion-mnist", data_dir=shared / "data").public_labels[:9000]
    assert np.mean(totals.argmax(axis=1) == truth) == pytest.approx(0.845, abs=0.001)
    for epsilon, wrong in ((4.05, 0.31), (5.04, 0.24)):
        given = tables.released_labels(totals, epsilon=epsilon, seed=0)
        assert len(given.index) == 2200
        assert np.mean(given.label != truth[given.index]) == pytest.approx(wrong, abs=0.03)
