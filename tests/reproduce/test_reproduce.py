"""The harness behind `pate-fed reproduce`: its ε, its tables, and going on after a stop."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
from pate_fed.reproduce import (
    Reproduction,
    frontier,
    mnist,
    proposition2_epsilon,
    proposition2_sigma,
    reproduce,
    rows,
    tables,
    threshold,
    votes,
)


@pytest.mark.parametrize(("asked", "answered", "sigma1"), [(2200, 2200, None), (5000, 2200, 150.0)])
def test_proposition_2_at_its_best_order(asked: int, answered: int, sigma1: float | None) -> None:
    orders = 1 + np.geomspace(1e-3, 1e4, 200_001)
    c = (asked / (2 * sigma1**2) if sigma1 else 0) + answered / 85.0**2
    slow = np.min(orders * c + math.log(1e5) / (orders - 1))
    found = proposition2_epsilon(asked=asked, answered=answered, sigma1=sigma1, sigma2=85.0, delta=1e-5)
    assert found == pytest.approx(slow, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 4.05, 5.04])
def test_the_noise_costs_what_is_wanted(epsilon: float) -> None:
    sigma = proposition2_sigma(answered=2200, epsilon=epsilon, delta=1e-5)
    again = proposition2_epsilon(asked=2200, answered=2200, sigma1=None, sigma2=sigma, delta=1e-5)
    assert again == pytest.approx(epsilon, rel=1e-12)


def test_the_tables_are_the_papers() -> None:
    plan = Reproduction(data_dir=Path(), out_dir=Path(), seeds=2)
    cells = list(tables._tasks(plan))
    assert len(cells) == len(set(cells)) == 2 * len(tables.PAPER)
    assert {cell[:4] for cell in cells} == set(tables.PAPER)
    sizes = [
        sum(1 for _ in tables._tasks(Reproduction(data_dir=Path(), out_dir=Path(), seeds=1, tables=(t,))))
        for t in (1, 2, 3, 4)
    ]
    assert sizes == [8, 6, 5, 10]  # β 0.2 and τ 0.318 are already in table I; the fourth is not the paper's


def test_the_tables_students_are_the_papers_or_the_quick_ones() -> None:
    def settings(*, paper: bool) -> StudentSettings:
        plan = Reproduction(data_dir=None, out_dir=Path(), paper=paper)
        return tables._student_settings(plan, "pate+", 0.2)

    scale = attrgetter("network", "epochs", "learning_rate")
    assert scale(settings(paper=True)) == ("deep-cnn", 400, 0.01)
    assert scale(settings(paper=False)) == (StudentSettings().network, 20, 6e-3)
    ours = tables._student_settings(Reproduction(data_dir=None, out_dir=Path()), "gan on the encoder", None)
    assert (ours.name, *scale(ours), ours.dropout) == ("gan", "encoder", 20, 6e-3, None)
    for each in (settings(paper=True), settings(paper=False)):
        assert (each.name, each.noise_rate, each.ema_decay, each.dropout) == ("pate+", 0.2, 0.0, 0.0)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reproduction:
    """Two easy classes, few inputs, few teachers, one epoch."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    images = (labels[:, None, None, None] * 90 + rng.integers(0, 120, (200, 8, 8, 1))).astype(np.uint8)
    data = SimpleNamespace(
        private_images=images, private_labels=labels, public_images=images, public_labels=labels
    )
    monkeypatch.setattr(tables, "load_dataset", lambda name, data_dir: data)
    monkeypatch.setattr(votes, "TEACHERS", 5)
    monkeypatch.setattr(votes, "TRAINED", 150)
    monkeypatch.setattr(tables, "TRAINED", 150)
    monkeypatch.setattr(tables, "CLASSES", 2)
    true = tables.released_labels
    monkeypatch.setattr(tables, "released_labels", lambda *a, **k: true(*a, **k, labels=40))
    whole = tables._student_settings
    monkeypatch.setattr(
        tables,
        "_student_settings",
        lambda plan, student, beta: replace(whole(plan, student, beta), epochs=2, batch_size=50),
    )
    return Reproduction(data_dir=tmp_path, out_dir=tmp_path / "out", seeds=2, tables=(1,))


def test_a_stopped_call_goes_on_where_it_was(tiny: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    true, count = tables._train, 0

    def failing(*args: object) -> object:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return true(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "_train", failing)
    with pytest.raises(KeyboardInterrupt):
        reproduce("pate++-fashion-mnist", tiny)
    lines = reproduce("pate++-fashion-mnist", tiny)
    assert count == 1 + 16  # three before the stop are not trained again
    with tiny.file("runs", "csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16 and {row["seed"] for row in rows} == {"0", "1"}
    assert any("74.8" in line for line in lines) and any("wrong" in line for line in lines)
    assert tiny.file("tables", "txt").read_text(encoding="utf-8").splitlines() == lines
    assert tiny.file("tables", "png").read_bytes().startswith(b"\x89PNG")
    with tiny.file("tables", "csv").open(encoding="utf-8", newline="") as file:
        summary = list(csv.DictReader(file))
    mean = 100 * np.mean(
        [float(r["accuracy"]) for r in rows if (r["student"], r["epsilon"]) == ("gan", "4.05")]
    )
    assert float(summary[0]["mean"]) == pytest.approx(mean, abs=0.01)


def test_the_students_on_an_encoder_learn_from_light_teachers(tiny: Reproduction) -> None:
    lines = reproduce("pate++-fashion-mnist", replace(tiny, tables=(4,), seeds=1))
    assert (tiny.out_dir / "totals-encoder-head.npz").exists()
    assert not tiny.file("totals", "npz").exists()  # nobody asked for the paper's teachers
    rows = [line for line in lines if line.startswith("ε") and " on the encoder" in line.split("(")[0]]
    assert len(rows) == 10 and all(" - " in row for row in rows)
    assert sum("cleansing on the encoder" in line for line in lines) <= 2
    with tiny.file("runs", "csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 10


def test_each_table_is_told_whose_labels_were_wrong(
    tiny: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAPER", {(4.05, "gan", None, None): 74.8})
    truth = tables.load_dataset("fashion-mnist", data_dir=None).public_labels[:150]
    for name, right in (("totals-quick.npz", True), ("totals-encoder-head.npz", False)):
        votes_ = 5000 * np.eye(2, dtype=np.int64)[truth if right else 1 - truth]
        (tmp_path / "out").mkdir(exist_ok=True)
        np.savez(tmp_path / "out" / name, totals=votes_)
    lines = reproduce("pate++-fashion-mnist", replace(tiny, tables=(1, 4), seeds=1))
    said = next(line for line in lines if line.startswith("ε 4.05 at δ"))
    assert "; 0.0 % of the labels are wrong" in said
    assert ", 100.0 % of the labels of students on the encoder are wrong" in said
    given = replace(
        tiny, tables=(1, 4), seeds=1, totals=tmp_path / "out" / "totals-quick.npz", out_dir=tmp_path / "o"
    )
    said = next(each for each in reproduce("pate++-fashion-mnist", given) if each.startswith("ε 4.05 at δ"))
    assert ", 0.0 % of the labels of students on the encoder are wrong" in said


def test_ready_totals_are_read(tmp_path: Path) -> None:
    totals = np.zeros((150, 2), dtype=np.uint8)
    totals[:, 1] = 5
    np.savez(tmp_path / "ready.npz", totals=totals)
    found = votes.read_totals(tmp_path / "ready.npz")
    assert found.dtype == np.int64 and found.sum() == 750
    (tmp_path / "other.npz").write_bytes(b"no")
    with pytest.raises(InputError, match="no totals"):
        votes.read_totals(tmp_path / "other.npz")


def test_what_cannot_be_done_is_named(tiny: Reproduction) -> None:
    with pytest.raises(InputError, match=r"pate\+\+-fashion-mnist"):
        reproduce("pate", tiny)
    tiny.out_dir.mkdir()
    tiny.file("runs", "csv").write_text("something else\n1\n", encoding="utf-8")
    with pytest.raises(InputError, match="remove it"):
        reproduce("pate++-fashion-mnist", tiny)


def test_light_teachers_give_totals_too(tiny: Reproduction, tmp_path: Path) -> None:
    dataset = tables.load_dataset("fashion-mnist", data_dir=None)
    found = votes.teachers_totals(
        dataset, path=tmp_path / "t.npz", teacher="encoder-head", device="cpu", say=lambda line: None
    )
    assert found.shape == (150, 2) and np.all(found.sum(axis=1) == 5)
    again = votes.teachers_totals(dataset, path=tmp_path / "t.npz", teacher="", device="cpu", say=print)
    assert np.array_equal(found, again)


def test_pate_plus_plus_is_pate_plus_again_on_cleansed_sets(tiny: Reproduction) -> None:
    """One first stage a seed, whether PATE+ was trained in this call or not."""
    reproduce("pate++-fashion-mnist", tiny)
    path = tiny.file("runs", "csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    kept = [row for row in rows if row[1] != "pate++"]
    counted = sorted(tiny.out_dir.glob("counts-pate+-*.npz"))
    assert len(counted) == 4
    counted[0].unlink()
    counted[1].write_bytes(counted[2].read_bytes())  # of other labels
    path.write_text("\n".join(",".join(row) for row in kept) + "\n", encoding="utf-8")
    reproduce("pate++-fashion-mnist", tiny)
    with path.open(encoding="utf-8", newline="") as file:
        again = list(csv.reader(file))
    assert sorted(again) == sorted(rows)
    removed = [row for row in rows if row[1] == "pate++"]
    assert len(removed) == 4 and all(0 <= int(row[7]) <= 12 for row in removed)  # τ 0.318 of 40


def _easy(classes: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images in which the bright row tells the class."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, classes, count)
    images = rng.integers(0, 60, (count, 12, 12, 1))
    images[np.arange(count), labels] += 160
    return images.astype(np.uint8), labels


def test_mnist_from_votes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = _easy(10, 260)
    data = SimpleNamespace(
        private_images=images, private_labels=labels, public_images=images, public_labels=labels
    )
    monkeypatch.setattr(mnist, "load_dataset", lambda name, data_dir: data)
    monkeypatch.setattr(mnist, "TRAINED", 200)
    monkeypatch.setattr(mnist, "LABELS", (60, 20))
    monkeypatch.setattr(mnist, "SLOW_STUDENTS", ("gan",))
    monkeypatch.setattr(mnist, "EPOCHS", 1)
    totals = np.full((200, 10), 2)
    totals[np.arange(200), labels[:200]] += 230
    np.save(tmp_path / "votes.npy", totals)
    plan = Reproduction(data_dir=None, out_dir=tmp_path, seeds=2, totals=tmp_path / "votes.npy")
    lines = reproduce("pate++-mnist-votes", plan)
    with (tmp_path / "mnist-votes-runs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["student"], row["labels"], row["seed"]) for row in rows] == [
        (student, labels, seed)
        for student in ("encoder-head", "gan")
        for seed in ("0", "1")
        for labels in ("60", "20")
    ]
    assert (tmp_path / "mnist-votes.png").read_bytes().startswith(b"\x89PNG")
    for row in rows[:4]:
        assert 0 < float(row["epsilon_do_not_publish"]) < float(row["epsilon_data_independent"])
        assert int(row["asked"]) >= int(row["labels"]) and float(row["accuracy"]) > 0.3
    assert any("do not publish" in line for line in lines)
    before = (tmp_path / "mnist-votes-runs.csv").read_bytes()
    assert reproduce("pate++-mnist-votes", plan) == lines  # nothing is trained again
    assert (tmp_path / "mnist-votes-runs.csv").read_bytes() == before
    with pytest.raises(InputError, match="mnist_250_teachers"):
        reproduce("pate++-mnist-votes", Reproduction(data_dir=tmp_path, out_dir=tmp_path))


def test_mnists_slow_students_come_after_the_quick_one_seed_by_seed() -> None:
    tasks = list(mnist._tasks(2))
    assert len(tasks) == len(set(tasks)) == 2 * 2 * 5
    assert {student for student, *_ in tasks[:4]} == {"encoder-head"}
    assert [seed for *_, seed in tasks] == [0, 0, 1, 1] + 8 * [0] + 8 * [1]
    assert {student for student, *_ in tasks[4:12]} == {"co-teaching", "gan", "pate+", "pate++"}


def test_mnists_picture_has_every_student_and_the_papers_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[int, Any] = {}
    true = mnist.draw_panels

    def keep(path: Path, titles: Any, draw: Any) -> None:
        true(path, titles, lambda panels: (draw(panels), drawn.update(enumerate(panels))))

    monkeypatch.setattr(mnist, "draw_panels", keep)
    facts = {"asked": 1, "labels_wrong": 0.0, "epsilon_do_not_publish": 1.0, "epsilon_data_independent": 2.0}
    students = (*mnist.QUICK_STUDENTS, *mnist.SLOW_STUDENTS)
    runs = [
        mnist.MnistRun(student=student, labels=labels, seed=0, accuracy=0.9, **facts)  # type: ignore[arg-type]
        for student in students
        for labels in mnist.LABELS
    ]
    mnist._draw(tmp_path / "a.png", runs)
    for axes in drawn.values():
        assert [text.get_text() for text in axes.get_xticklabels()] == list(students)
    heights = [{float(line.get_ydata()[0]) for line in axes.lines} for axes in drawn.values()]
    assert 98.5 in heights[0] and 98.5 not in heights[1] and 90.0 in heights[1]


@pytest.mark.parametrize("epsilon", [0.5, 4.05])
def test_the_frontiers_noise_costs_what_it_says_and_no_tenth_less(epsilon: float) -> None:
    from pate_fed.privacy import RECORD, GNMax, epsilon_of

    def cost(sigma: float) -> float:
        mechanism = GNMax(num_teachers=250, num_classes=10, sigma=sigma)
        return epsilon_of(mechanism.cost_asked(RECORD) * 800, 1e-5)

    sigma = frontier.sigma_for(labels=800, epsilon=epsilon)
    assert cost(sigma) <= epsilon < cost(sigma - 0.1)


def test_the_frontier_of_a_small_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = _easy(10, 260)
    data = SimpleNamespace(
        private_images=images, private_labels=labels, public_images=images, public_labels=labels
    )
    monkeypatch.setattr(frontier, "load_dataset", lambda name, data_dir: data)
    for room in (frontier, votes):
        monkeypatch.setattr(room, "TRAINED", 200)
    monkeypatch.setattr(votes, "TEACHERS", 4)
    monkeypatch.setattr(frontier, "LABELS", {2.0: 100, 6.0: 150})
    monkeypatch.setattr(frontier, "SLOW_EPSILONS", (6.0,))
    monkeypatch.setattr(frontier, "SLOW_STUDENTS", ("supervised",))
    monkeypatch.setattr(frontier, "TEACHERS", ("encoder-head",))
    monkeypatch.setattr(frontier, "sigma_for", lambda labels, epsilon: 1 / epsilon)
    plan = Reproduction(data_dir=tmp_path, out_dir=tmp_path, seeds=2)
    lines = reproduce("fashion-mnist-frontier", plan)
    assert sum("encoder-head" in line for line in lines) == 3
    assert any("79.6 % at ε 4.05" in line for line in lines)
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert reproduce("fashion-mnist-frontier", plan) == lines


def test_a_threshold_is_measured_against_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = _easy(10, 260)
    data = SimpleNamespace(
        private_images=images, private_labels=labels, public_images=images, public_labels=labels
    )
    monkeypatch.setattr(threshold, "load_dataset", lambda name, data_dir: data)
    for room in (threshold, votes):
        monkeypatch.setattr(room, "TRAINED", 240)
    monkeypatch.setattr(votes, "TEACHERS", 4)
    monkeypatch.setattr(threshold, "ASKED_OF", 180)
    monkeypatch.setattr(threshold, "EPSILON", 2000.0)
    settings = ((None, None, 100), (4.0, 1.0, 60))
    monkeypatch.setattr(threshold, "SETTINGS", settings)
    plan = Reproduction(data_dir=tmp_path, out_dir=tmp_path, seeds=2)
    lines = reproduce("fashion-mnist-threshold", plan)
    assert reproduce("fashion-mnist-threshold", plan) == lines
    runs = rows.read_rows(tmp_path / "threshold-runs.csv", threshold.ThresholdRun)
    assert [(run.threshold, run.sigma1, run.labels) for run in runs] == list(settings) * 2
    for plain, chosen in zip(runs[::2], runs[1::2], strict=True):
        assert plain.asked == 100 and chosen.asked > 60
        assert chosen.agreement >= chosen.agreement_pool
    assert "student, %" in lines[0] and len(lines) == 6


def test_what_a_threshold_leaves_for_labels() -> None:
    def sigma2(asked: int, sigma1: float | None) -> float:
        return threshold.affordable_sigma2(asked=asked, answered=500, sigma1=sigma1, teachers=250)

    assert sigma2(500, None) == frontier.sigma_for(labels=500, epsilon=4.05)
    assert sigma2(1000, 100.0) > sigma2(600, 100.0) > sigma2(500, 1e6) == sigma2(500, None)
    with pytest.raises(InputError, match="before any label"):
        sigma2(9000, 20.0)


def test_the_kept_totals_are_of_these_images(shared: Path) -> None:
    """Totals of 250 small CNNs of 240 images; with them the tables need no teachers (`--totals`)."""
    from pate_fed.data import load_dataset

    totals = votes.read_totals(Path(__file__).parents[1] / "files" / "fashion-mnist-totals.npz")
    assert totals.shape == (9000, 10) and np.all(totals.sum(axis=1) == 250)
    truth = load_dataset("fashion-mnist", data_dir=shared / "data").public_labels[:9000]
    assert np.mean(totals.argmax(axis=1) == truth) == pytest.approx(0.845, abs=0.001)
    for epsilon, wrong in ((4.05, 0.31), (5.04, 0.24)):
        index, label = tables.released_labels(totals, epsilon=epsilon, seed=0)
        assert len(index) == 2200
        assert np.mean(label != truth[index]) == pytest.approx(wrong, abs=0.03)


def test_label_dp_tables_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from pate_fed.label_dp.learners import LearnSettings
    from pate_fed.label_dp.teachers import TeachSettings
    from pate_fed.reproduce import label_dp

    images, labels = _easy(10, 300)
    data = SimpleNamespace(
        private_images=images,
        private_labels=labels,
        public_images=images[:60].copy(),
        public_labels=labels[:60],
        num_classes=10,
    )
    monkeypatch.setattr(label_dp, "load_dataset", lambda name, data_dir: data)
    monkeypatch.setattr(label_dp, "EPSILONS", (0.5, 4.0))
    monkeypatch.setattr(label_dp, "IN_TURN", (4.0, 0.5))
    monkeypatch.setattr(label_dp, "OURS", ("noise-cluster", "randres+denoise-ssl", "pate-fm"))
    monkeypatch.setattr(label_dp, "OTHERS", ("lp-1st",))
    monkeypatch.setattr(label_dp, "RECORDS", 300)
    true = label_dp._settings
    quick = LearnSettings(epochs=1, batch_size=64)
    small = TeachSettings(num_teachers=5, learn=quick, unlabelled=64)
    monkeypatch.setattr(label_dp, "_settings", lambda plan: replace(true(plan), learn=quick, teach=small))
    plan = Reproduction(data_dir=tmp_path, out_dir=tmp_path, seeds=1)
    lines = reproduce("label-dp-fashion-mnist", plan)
    path = plan.file("label-dp-runs", "csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * (1 + 2 * 4)
    assert any("RandRes, formula" in line and "15.5" in line and "85.8" in line for line in lines)
    assert any("Equation 8" in line for line in lines) and any("90.7" in line for line in lines)
    assert lines[-1].startswith("ours differs: randres+ssl") and "two strong ones" in lines[-1]
    assert "two strong ones" not in list(label_dp._lines([], paper=True))[-1]
    assert plan.file("label-dp", "png").read_bytes().startswith(b"\x89PNG")
    kept = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(kept[:-2]) + "\n", encoding="utf-8")
    reproduce("label-dp-fashion-mnist", plan)
    with path.open(encoding="utf-8", newline="") as file:
        again = list(csv.DictReader(file))
    drop = [{key: value for key, value in row.items() if key != "seconds"} for row in again]
    assert drop == [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    plan.file("label-dp-totals-mnist", "npy").write_bytes(b"no")
    path.unlink()
    with pytest.raises(InputError, match="not totals of teachers"):
        reproduce("label-dp-fashion-mnist", plan)


def test_label_dp_at_the_papers_scale_is_the_papers(tmp_path: Path) -> None:
    from pate_fed.label_dp.scan import scan_clusters
    from pate_fed.reproduce import label_dp

    paper = label_dp._settings(Reproduction(data_dir=tmp_path, out_dir=tmp_path, paper=True))
    assert paper.clusterer is scan_clusters and paper.num_clusters == 10
    assert (paper.teach.num_teachers, paper.teach.unlabelled, paper.teach.learn.epochs) == (800, 0, 40)
    assert paper.learn.sgd and paper.learn.epochs == 200
    quick = label_dp._settings(Reproduction(data_dir=tmp_path, out_dir=tmp_path))
    assert quick.num_clusters is None and quick.teach.num_teachers == 250
    tasks = list(label_dp._tasks(3))
    assert len(tasks) == len(set(tasks)) == 4 * (1 + 5 * 12)
    assert {task[1] for task in tasks} >= set(label_dp.PAPER)
