"""PATE++'s tables: Proposition 2, what they consist of, and all in small."""

from __future__ import annotations

import csv
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.data import Dataset
from pate_fed.learning import ADDITIONS, PUBLISHED, StudentSettings
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
    tasks = tables._tasks(Reproduction(data_dir=Path(), out_dir=Path(), seeds=2))
    assert len(tasks) == len(set(tasks))
    for way in (tables.THEIRS, tables.OURS):
        assert {task[:4] for task in tasks if task[4] == way} == set(tables.PAPER)
    sizes = {name: len(keys) for name, keys in tables._of_table().items()}
    # β 0.2 and τ 0.318 are already in table I; the last two are not the paper's
    assert sizes == {"I": 16, "steps": 11, "II": 12, "III": 10, "encoder": 8}


def _settings(name: str, beta: float | None, tau: float | None, way: str, **plan: Any) -> StudentSettings:
    return tables._settings(Reproduction(data_dir=None, out_dir=Path(), **plan), name, beta, tau, way)


@pytest.mark.parametrize(("name", "tau"), [("co-teaching", None), ("pate+", None), ("pate++", 0.318)])
def test_a_column_is_the_preset(name: str, tau: float | None) -> None:
    """On the paper's scale every value is `as_published`; small it differs in the network and the epochs."""
    preset = StudentSettings(name=name, as_published=True)
    for paper in (True, False):
        given = _settings(name, 0.2, tau, tables.THEIRS, paper=paper)
        other = {key for key in PUBLISHED[name] if given.chosen(key) != preset.chosen(key)}
        assert other == (set() if paper else {"network", "epochs"})
    assert _settings("gan", None, None, tables.THEIRS, paper=True).built_on == "deep-cnn"


def test_each_step_changes_what_it_says_and_the_last_is_a_study_s_own() -> None:
    keys = tables._of_table()["steps"]
    steps = {key[4]: _settings(*key[1:]) for key in keys}
    seen = [{f.name: getattr(each, f.name) for f in fields(each)} for each in steps.values()]
    for name, before, after in zip([*steps][1:], seen, seen[1:], strict=False):
        changed = {key for key in after if after[key] != before[key]}
        if name in tables.STEPS:
            assert changed == set(tables.STEPS[name])
    assert steps[tables.OURS] == StudentSettings(name="pate++", network="small-cnn", epochs=10)
    own, last = steps[tables.OURS], steps["undisputed"]
    assert all(own.adds(each) and last.adds(each) for each in ADDITIONS)
    assert (own.rate, own.averaging) == (last.rate, last.averaging)
    assert [own.rate_in(epoch) for epoch in (5, 10)] == [last.rate_in(epoch) for epoch in (5, 10)]
    assert steps[tables.ON_ENCODER] == StudentSettings(name="pate++", epochs=10)
    assert steps[tables.HEAD] == StudentSettings(name="encoder-head")


@pytest.fixture
def tiny(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    """Table I's students at one ε, two epochs each."""
    whole = tables._settings
    monkeypatch.setattr(
        tables, "_settings", lambda *given: replace(whole(*given), epochs=2, batch_size=50, ramp_epochs=1)
    )
    four = {key: value for key, value in PAPER.items() if key[0] == 4.05 and key[2] in (None, 0.2)}
    monkeypatch.setattr(tables, "PAPER", {key: four[key] for key in four if key[3] in (None, 0.318)})
    return replace(small, tables=("I",))


PAPER = dict(tables.PAPER)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_table_1_in_small(tiny: Reproduction) -> None:
    lines = reproduce("pate++-fashion-mnist", tiny)
    rows = _rows(tiny.file("runs", "csv"))
    names = ["gan", "co-teaching", "pate+", "pate++"]
    assert [row["student"] for row in rows] == [name for name in names for _ in range(2)]
    assert [row["settings"] for row in rows] == 4 * [tables.THEIRS, tables.OURS]
    assert tiny.file("totals", "npz").exists()
    assert [row["removed"] != "" for row in rows] == [False] * 6 + [True] * 2
    assert 0 <= int(rows[6]["removed"]) <= 12  # τ 0.318 of 40
    assert rows[0]["accuracy"] == rows[0]["accuracy_single"]  # PATE is one network
    assert lines[2].split()[:4] == ["ε", "4.05,", "gan", "74.8"]
    shares = [f"{100 * float(row['accuracy']):.1f}" for row in rows[:2]]
    assert lines[2].split()[4:7] == [*shares, "1"]
    assert tiny.file("tables", "txt").read_text(encoding="utf-8").splitlines() == lines


def test_the_pate_plus_plus_of_the_tables_is_a_studys_own(
    tiny: Reproduction, loaded: dict[str, Dataset]
) -> None:
    from pate_fed.learning import LabelledPool, train_student

    data = loaded["fashion-mnist"]
    totals = np.load(tiny.data_dir / "a.npy")  # type: ignore[operator]
    row = tables._train(tiny, data, {"small-cnn": totals}, (4.05, "pate++", 0.2, 0.318, tables.THEIRS, 3))
    given = tables.released_labels(totals, epsilon=4.05, seed=3)
    images = data.public_images[:200]
    pool = LabelledPool(images=images, labelled_index=given.index, labels=given.label, num_classes=10)
    student = train_student(pool, tables._settings(tiny, "pate++", 0.2, 0.318, tables.THEIRS), seed=3)
    assert row.accuracy == np.mean(student.predict(data.public_images[200:]) == data.public_labels[200:])
    assert student.removed is not None and row.removed == student.removed.sum()


def test_the_students_on_an_encoder_learn_from_light_teachers(tiny: Reproduction) -> None:
    lines = reproduce("pate++-fashion-mnist", replace(tiny, tables=("encoder",)))
    assert (tiny.out_dir / "totals-encoder-head.npz").exists()
    assert not tiny.file("totals", "npz").exists()  # nobody asked for the paper's teachers
    shown = [line for line in lines if line.startswith("ε") and "pate++" in line]
    assert len(shown) == 1 and len(_rows(tiny.file("runs", "csv"))) == 4
    assert lines[0].startswith("Not in the paper")


def test_each_student_is_told_how_many_of_its_labels_were_wrong(
    tiny: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAPER", {(4.05, "supervised", None, None): 74.8})
    truth = tiny.load("fashion-mnist").public_labels[:200]
    tiny.out_dir.mkdir()
    for name, right in (("totals-quick.npz", True), ("totals-encoder-head.npz", False)):
        kept = 5000 * np.eye(10, dtype=np.int64)[truth if right else (truth + 1) % 10]
        np.savez(tiny.out_dir / name, totals=kept)
    both = replace(tiny, tables=("I", "encoder"))
    wrong = {}
    for plan in (both, replace(both, totals=tiny.out_dir / "totals-quick.npz", out_dir=tiny.out_dir / "o")):
        reproduce("pate++-fashion-mnist", plan)
        wrong[plan] = {row["settings"]: row["labels_wrong"] for row in _rows(plan.file("runs", "csv"))}
    first, given = wrong.values()
    assert first[tables.THEIRS] == "0.0" and first[tables.LIGHT] == "1.0"
    assert given[tables.LIGHT] == "0.0"


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
