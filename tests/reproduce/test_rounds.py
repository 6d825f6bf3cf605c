"""PATE 2017 on MNIST, Interactive against Confident, and Glyph at scale: their parts, and all in small."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy import RECORD, GNMax, LNMax, epsilon_of
from pate_fed.reproduce import Reproduction, glyph_scale, interactive, mnist2017, questions, reproduce, votes

ROOMS = (votes, mnist2017, interactive, questions)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    """Ten easy classes, 260 images, and published votes for the first 200 of them."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, 260)
    images = rng.integers(0, 60, (260, 12, 12, 1))
    images[np.arange(260), labels] += 160
    pixels = images.astype(np.uint8)
    data = SimpleNamespace(
        private_images=pixels,
        private_labels=labels,
        public_images=pixels,
        public_labels=labels,
        num_classes=10,
    )
    for room in ROOMS:
        monkeypatch.setattr(room, "TRAINED", 200)
    for room in (mnist2017, interactive, questions):
        monkeypatch.setattr(room, "load_dataset", lambda name, data_dir: data)
    folder = tmp_path / "pate_votes"
    folder.mkdir()
    totals = np.full((200, 10), 2)
    totals[np.arange(200), labels[:200]] += 230
    np.save(folder / "mnist_250_teachers.npy", totals)
    np.save(folder / "mnist_250_student_labels_lap_20.npy", labels[:200])
    np.save(folder / "mnist_250_teachers_100_indices_used_by_student.npy", np.arange(100, 200))
    return Reproduction(data_dir=tmp_path, out_dir=tmp_path / "out", seeds=1)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_gaps_are_shares_of_the_votes() -> None:
    totals = np.array([[8, 2, 0], [5, 5, 0], [0, 0, 10]])
    assert mnist2017.gaps(totals).tolist() == [0.6, 0.0, 1.0]


def test_more_noise_gives_fewer_right_labels() -> None:
    totals = np.tile([140, 60, 50], (400, 1))
    truth = np.zeros(400, dtype=np.int64)
    found = [mnist2017.noisy_accuracy(totals, truth, gamma) for gamma in (0.01, 0.05, 1.0)]
    assert found[0] < found[1] < found[2] == 1.0


def test_mnist_2017s_gan_is_on_the_improved_gans_network() -> None:
    found = {
        (name, paper): mnist2017._settings(name, paper=paper) for name in ("gan", "vat") for paper in (0, 1)
    }
    assert [each.network for each in found.values()] == ["dense", "dense", "small-cnn", "deep-cnn"]
    assert all(each.name == name and each.test_every == each.epochs for (name, _), each in found.items())


def test_mnist_2017_in_small(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist2017, "ENSEMBLES", (4, 250))
    monkeypatch.setattr(mnist2017, "GAMMAS", (0.05, 1.0))
    monkeypatch.setattr(mnist2017, "LABELS", (100,))
    monkeypatch.setattr(mnist2017, "STUDENTS", ("supervised",))
    lines = reproduce("pate-2017-mnist", small)
    rows = _rows(small.file("pate-2017-mnist-runs", "csv"))
    assert [row["source"] for row in rows] == ["authors", "ours"]
    assert float(rows[0]["labels_wrong"]) == 0
    flat = epsilon_of(LNMax(num_teachers=250, num_classes=10, scale=20.0).cost_asked(RECORD) * 100, 1e-5)
    assert all(float(row["epsilon_data_independent"]) == flat for row in rows)
    assert any("DO NOT PUBLISH" in line for line in lines) and any("98.0" in line for line in lines)
    assert (small.out_dir / "pate-2017-mnist-figures-2-3.png").read_bytes().startswith(b"\x89PNG")
    assert reproduce("pate-2017-mnist", small) == lines  # nothing is trained again
    with pytest.raises(InputError, match="mnist_250_teachers"):
        reproduce("pate-2017-mnist", Reproduction(data_dir=small.out_dir, out_dir=small.out_dir))


def test_interactive_against_confident_in_small(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "BUDGETS", {"mnist": (1.5, 1.0)})
    monkeypatch.setattr(interactive, "STUDENTS", ("encoder-head",))
    lines = reproduce("interactive-gnmax", small)
    rows = _rows(small.out_dir / "interactive-gnmax-runs.csv")
    assert [row["kind"] for row in rows] == 2 * list(interactive.KINDS)
    for row in rows:
        assert 0 < float(row["epsilon"]) <= float(row["budget"])
        assert int(row["answered"]) <= int(row["asked"]) <= 200
        assert (int(row["confirmed"]) > 0) == (row["kind"] == interactive.KINDS[2])
    assert sum("than Confident at 1.5" in line for line in lines) == 4
    assert (small.out_dir / "interactive-gnmax.png").read_bytes().startswith(b"\x89PNG")
    assert reproduce("interactive-gnmax", small) == lines


def test_questions_in_small(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LABELS": (40,), "EPOCHS": 1, "SAMPLES": (30, 60), "TEACHERS": 5}.items():
        monkeypatch.setattr(questions, name, value)
    lines = reproduce("pate-2017-questions", small)
    rows = _rows(small.out_dir / "pate-2017-questions-asked.csv")
    assert [row["strategy"] for row in rows] == ["random", "least-confident", "binary-experts"]
    assert len({row["epsilon"] for row in rows}) == 1  # no choice costs more than another
    distilled = _rows(small.out_dir / "pate-2017-questions-distilled-not-private.csv")
    assert {row["target"] for row in distilled} == {"plurality", "T = 1", "T = 5"}
    assert all(float(row["accuracy"]) > 0.3 for row in distilled)
    assert any("NOT PRIVATE" in line for line in lines)
    assert (small.out_dir / "pate-2017-questions.png").read_bytes().startswith(b"\x89PNG")
    assert reproduce("pate-2017-questions", small) == lines


def test_warmer_teachers_say_more_of_other_classes(small: Reproduction) -> None:
    from pate_fed.reproduce.distilling import shares_of_heads

    data = mnist2017.load_dataset("mnist", data_dir=None)
    hard, cool, warm = shares_of_heads(
        data.private_images,
        data.private_labels,
        np.array_split(np.arange(260), 4),
        public=data.public_images[:50],
        num_classes=10,
        temperatures=(1.0, 5.0),
    )
    assert all(np.allclose(each.sum(axis=1), 1, atol=1e-5) for each in (hard, cool, warm))
    assert set(np.unique(hard)) == {0.0, 1.0}
    assert warm.max(axis=1).mean() < cool.max(axis=1).mean() < 1


@pytest.mark.parametrize("kind", ["LNMax", "GNMax"])
def test_the_noise_at_equal_epsilon_costs_that_and_a_tenth_less_more(kind: str) -> None:
    noise = glyph_scale.noise_for(kind, queries=4000, epsilon=2.0)

    def cost(value: float) -> float:
        size = {"num_teachers": 1, "num_classes": 150}
        one = GNMax(**size, sigma=value) if kind == "GNMax" else LNMax(**size, scale=value)
        return epsilon_of(one.cost_asked(RECORD) * 4000, 1e-8)

    assert cost(noise) <= 2.0 < cost(noise - 0.1)


def test_simulated_teachers_vote_by_the_real_ones_shares() -> None:
    totals = np.array([[200, 50, 0], [0, 0, 250]])
    drawn = glyph_scale.simulated_totals(totals, teachers=5000, seed=1, queries=600)
    assert drawn.shape == (600, 3) and (drawn.sum(axis=1) == 5000).all()
    shares = drawn[::2].mean(axis=0) / 5000
    assert shares == pytest.approx([0.8, 0.2, 0.0], abs=0.01)
    assert drawn[1::2, 2].mean() > 4950


def test_glyph_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "CLASSES": 5,
        "PRIVATE": 600,
        "ASKED": 100,
        "REAL": (10, 20, 1000),
        "SIMULATED": (100, 5000),
        "BASIS": 20,
        "SHARES": (0.02, 0.1),
        "QUERIES": 300,
    }.items():
        monkeypatch.setattr(glyph_scale, name, value)
    monkeypatch.setenv("PATE_FED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glyph_scale, "GlyphSettings", lambda **given: _small_glyph(**given))
    true = glyph_scale.ensemble_totals
    monkeypatch.setattr(
        glyph_scale, "ensemble_totals", lambda *a, count, **k: true(*a, count=min(count, 40), **k)
    )
    plan = Reproduction(data_dir=None, out_dir=tmp_path / "out")
    lines = reproduce("scalable-glyph", plan)
    assert any("DO NOT PUBLISH" in line for line in lines)
    shares = [float(line.split("(")[-1].split()[0]) for line in lines if line.endswith("%)")]
    assert shares[0] == 100 and shares[0] > shares[1] > shares[2]
    rows = _rows(plan.out_dir / "scalable-glyph-figure-4.csv")
    assert {row["mechanism"] for row in rows} == {"LNMax", "GNMax"}
    assert (plan.out_dir / "scalable-glyph.png").read_bytes().startswith(b"\x89PNG")


def _small_glyph(**given: int) -> object:
    from pate_fed.data import GlyphSettings

    return GlyphSettings(**given, public=400)
