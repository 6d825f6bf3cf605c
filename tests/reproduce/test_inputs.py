"""What a reproduction's rows were made from, which totals it takes, and which options: nothing in silence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from pate_fed import reproduce as reproduction
from pate_fed.cli.main import main
from pate_fed.errors import InputError
from pate_fed.reproduce import (
    Reproduction,
    frontier,
    glyph_scale,
    interactive,
    label_dp,
    measures,
    mnist,
    mnist2017,
    questions,
    reproduce,
    rows,
    tables,
    threshold,
    votes,
)

ALL = (votes, tables, frontier, threshold, mnist, mnist2017, questions, interactive)


def _data(seed: int) -> SimpleNamespace:
    """Ten classes that the bright row tells, 260 images."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, 260)
    images = rng.integers(0, 60, (260, 12, 12, 1))
    images[np.arange(260), labels] += 160
    pixels = images.astype(np.uint8)
    return SimpleNamespace(
        private_images=pixels,
        private_labels=labels,
        public_images=pixels,
        public_labels=labels,
        num_classes=10,
    )


def _totals(path: Path, data: SimpleNamespace, right: int) -> Path:
    """250 teachers of whom so many are right, and a little less on every second input."""
    made = np.full((200, 10), 0)
    truth = data.public_labels[:200]
    made[np.arange(200), truth] = right
    made[np.arange(200), (truth + 1) % 10] = 250 - right
    np.save(path, made)
    return path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All rooms on the small data set; gives the folder of the data."""
    data = _data(1)
    for room in ALL:
        monkeypatch.setattr(room, "TRAINED", 200)
        if hasattr(room, "load_dataset"):
            monkeypatch.setattr(room, "load_dataset", lambda name, data_dir: data)
    monkeypatch.setattr(frontier, "TEACHERS", ("encoder-head",))
    monkeypatch.setattr(frontier, "LABELS", {4.05: 20})
    monkeypatch.setattr(frontier, "SLOW_STUDENTS", ())
    monkeypatch.setattr(votes, "TEACHERS", 5)
    monkeypatch.setattr(threshold, "ASKED_OF", 150)
    monkeypatch.setattr(threshold, "EPSILON", 50.0)
    monkeypatch.setattr(threshold, "SETTINGS", ((None, None, 40),))
    monkeypatch.setattr(mnist, "LABELS", (20,))
    monkeypatch.setattr(mnist, "SLOW_STUDENTS", ())
    monkeypatch.setattr(mnist2017, "ENSEMBLES", (4, 250))
    monkeypatch.setattr(mnist2017, "GAMMAS", (0.05,))
    monkeypatch.setattr(mnist2017, "LABELS", (20,))
    monkeypatch.setattr(mnist2017, "STUDENTS", ("encoder-head",))
    monkeypatch.setattr(questions, "LABELS", (20,))
    monkeypatch.setattr(questions, "STRATEGIES", ("random",))
    monkeypatch.setattr(questions, "EPOCHS", 1)
    monkeypatch.setattr(questions, "SAMPLES", (30,))
    monkeypatch.setattr(questions, "TEACHERS", 5)
    monkeypatch.setattr(interactive, "BUDGETS", {"fashion-mnist": (1.5,), "mnist": (1.5,)})
    monkeypatch.setattr(interactive, "STUDENTS", ("encoder-head",))
    true = tables.released_labels
    monkeypatch.setattr(tables, "released_labels", lambda *a, **k: true(*a, **k, labels=40))
    monkeypatch.setattr(tables, "PAPER", {(4.05, "supervised", None, None): 74.8})
    folder = tmp_path / "pate_votes"
    folder.mkdir()
    _totals(folder / "mnist_250_teachers.npy", data, 240)
    np.save(folder / "mnist_250_student_labels_lap_20.npy", data.public_labels[:200])
    np.save(folder / "mnist_250_teachers_100_indices_used_by_student.npy", np.arange(100, 200))
    _totals(tmp_path / "a.npy", data, 240)
    _totals(tmp_path / "b.npy", data, 230)
    return tmp_path


ROWS: dict[str, tuple[ModuleType, str]] = {
    "pate++-fashion-mnist": (tables, "runs-quick"),
    "pate++-mnist-votes": (mnist, "mnist-votes-runs"),
    "fashion-mnist-frontier": (frontier, "frontier-runs"),
    "fashion-mnist-threshold": (threshold, "threshold-runs"),
    "interactive-gnmax": (interactive, "interactive-gnmax-runs"),
    "pate-2017-mnist": (mnist2017, "pate-2017-mnist-runs-quick"),
    "pate-2017-questions": (questions, "pate-2017-questions-asked"),
}
TAKES_TOTALS = [name for name in ROWS if name not in ("fashion-mnist-frontier", "pate-2017-mnist")]


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_only_shown_to_calls_with_their_inputs(
    name: str, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, stem = ROWS[name]
    out = small / "out"

    def plan(totals: str) -> Reproduction:
        given = small / totals if name in TAKES_TOTALS else None
        return Reproduction(data_dir=small, out_dir=out, seeds=1, totals=given)

    lines = reproduce(name, plan("a.npy"))
    path, beside = out / f"{stem}.csv", out / f"{stem}-inputs.json"
    before, kept = path.read_bytes(), beside.read_bytes()
    assert reproduce(name, plan("a.npy")) == lines
    if name in TAKES_TOTALS:
        with pytest.raises(InputError, match=r"other .*totals .*--out"):
            reproduce(name, plan("b.npy"))
    beside.unlink()  # as an earlier version left it
    assert reproduce(name, plan("a.npy")) == lines
    assert beside.read_bytes() == kept
    other = _data(2)
    monkeypatch.setattr(room, "load_dataset", lambda name, data_dir: other)
    with pytest.raises(InputError, match=r"other (.* )?(images|labels|data).*--out"):
        reproduce(name, plan("a.npy"))
    assert path.read_bytes() == before and beside.read_bytes() == kept


def test_the_frontiers_totals_may_not_change_under_its_rows(small: Path) -> None:
    plan = Reproduction(data_dir=small, out_dir=small / "out", seeds=1)
    reproduce("fashion-mnist-frontier", plan)
    kept = plan.out_dir / "totals-encoder-head.npz"
    totals = votes.read_totals(kept)
    np.savez(kept, totals=np.roll(totals, 1, axis=1))
    with pytest.raises(InputError, match="totals of encoder-head"):
        reproduce("fashion-mnist-frontier", plan)


@pytest.mark.parametrize("name", ["fashion-mnist-frontier", "pate-2017-questions", "pate-2017-mnist"])
def test_kept_totals_are_not_taken_for_other_data(
    name: str, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Reproduction(data_dir=small, out_dir=small / "out", seeds=1)
    reproduce(name, plan)
    for path in plan.out_dir.iterdir():
        if path.suffix != ".npz":
            path.unlink()
    other = _data(2)
    monkeypatch.setattr(ROWS[name][0], "load_dataset", lambda name, data_dir: other)
    with pytest.raises(InputError, match=r"totals-.*\.npz: totals of teachers of other data"):
        reproduce(name, plan)
    kept = next(plan.out_dir.glob("totals-*.npz"))
    np.savez(kept, totals=votes.read_totals(kept))  # as an earlier version left it
    assert len(votes.read_totals(kept, data="0" * 64)) == 200


def test_private_labels_rows_are_bound_too(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(bench: object, task: label_dp.Task) -> label_dp.LabelRun:
        dataset, method, epsilon, seed = task
        shares = {"labels_right": 0.5, "accuracy": 0.5, "kept": 1, "kept_right": 0.5, "equation8": 0.5}
        return label_dp.LabelRun(
            dataset=dataset,
            method=method,
            epsilon=epsilon,
            seed=seed,
            seconds=0.0,
            **shares,  # type: ignore[arg-type]
        )

    data = {"fashion-mnist": _data(1), "mnist": _data(2)}
    monkeypatch.setattr(label_dp, "load_dataset", lambda name, data_dir: data[name])
    monkeypatch.setattr(
        label_dp._Bench, "__init__", lambda bench, name, plan, say: setattr(bench, "name", name)
    )
    monkeypatch.setattr(label_dp._Bench, "run", made)
    plan = Reproduction(data_dir=None, out_dir=small / "out", seeds=1)
    lines = reproduce("label-dp-fashion-mnist", plan)
    assert reproduce("label-dp-fashion-mnist", plan) == lines
    data["mnist"] = _data(3)
    with pytest.raises(InputError, match="other mnist images"):
        reproduce("label-dp-fashion-mnist", plan)


def test_a_command_line_with_other_totals_is_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "fashion-mnist-threshold", "--seeds", "1", "--out", str(small / "out")]
    assert main([*command, "--totals", str(small / "a.npy")]) == 0
    capsys.readouterr()
    assert main([*command, "--totals", str(small / "b.npy")]) == 2
    said = capsys.readouterr()
    assert "give another --out" in said.err and not said.out


def test_inputs_bind_rows_and_nothing_else(tmp_path: Path) -> None:
    path, beside = tmp_path / "x.csv", tmp_path / "x-inputs.json"
    rows.bind_rows(path, {"images": "a" * 64, "totals": "b" * 64})
    rows.bind_rows(path, {"images": "c" * 64})  # no rows yet: nothing to hold to
    assert json.loads(beside.read_text(encoding="utf-8")) == {"images": "c" * 64}
    path.write_text("a\n1\n", encoding="utf-8")
    rows.bind_rows(path, {"images": "c" * 64, "totals": "d" * 64})  # one more, from now on
    with pytest.raises(InputError, match=r"other totals \(dddddddddddd, this call's are eeeeeeeeeeee\)"):
        rows.bind_rows(path, {"images": "c" * 64, "totals": "e" * 64})
    for broken in ("no", "[]", '{"images": 1}'):
        beside.write_text(broken, encoding="utf-8")
        with pytest.raises(InputError, match=r"x-inputs\.json"):
            rows.bind_rows(path, {"images": "c" * 64})


def test_quick_rows_are_not_the_papers(small: Path) -> None:
    data = _data(1)
    found = [
        votes.inputs_of(Reproduction(data_dir=None, out_dir=small, paper=paper), data, {})  # type: ignore[arg-type]
        for paper in (False, True)
    ]
    assert [each.pop("scale") for each in found] == ["quick", "paper"]
    assert found[0] == found[1] and len(found[0]) == 2


def _whole() -> np.ndarray:
    return np.tile([3, 2, 0], (6, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a[:, 0], r"shape \(6,\)"),
        (lambda a: a[:0], r"shape \(0, 3\)"),
        (lambda a: a + 0.5, "not whole"),
        (lambda a: np.where(a == 0, np.nan, a), "not whole"),
        (lambda a: a.astype(str), "not whole"),
        (lambda a: a * 0 - 1, "negative"),
        (lambda a: a + np.arange(6)[:, None], "5 to 20 votes"),
        (lambda a: a[:5], "5 rows, where at least 6"),
        (lambda a: np.hstack([a, a]), "6 columns, where the data set has 3"),
    ],
)
def test_totals_are_checked(tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], words: str) -> None:
    np.save(tmp_path / "t.npy", change(_whole()))
    with pytest.raises(InputError, match=words):
        votes.read_totals(tmp_path / "t.npy", rows=6, classes=3)


def test_whole_numbers_in_floats_are_totals_and_more_rows_are_left_out(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.tile(_whole(), (2, 1)).astype(np.float64))
    found = votes.read_totals(tmp_path / "t.npy", rows=6, classes=3)
    assert found.dtype == np.int64 and np.array_equal(found, _whole())


@pytest.mark.parametrize("name", TAKES_TOTALS)
def test_too_few_totals_are_refused_before_anything_is_trained(name: str, small: Path) -> None:
    np.save(small / "few.npy", np.load(small / "a.npy")[:199])
    plan = Reproduction(data_dir=small, out_dir=small / "out", seeds=1, totals=small / "few.npy")
    with pytest.raises(InputError, match="199 rows, where at least 200"):
        reproduce(name, plan)


OPTIONS = {
    "--paper": {"pate++-fashion-mnist", "pate-2017-mnist", "label-dp-fashion-mnist"},
    "--totals": set(TAKES_TOTALS),
    "--tables": {"pate++-fashion-mnist"},
    "--seeds": set(reproduction.REPRODUCTIONS) - {"scalable-glyph"},
}


@pytest.mark.parametrize("name", reproduction.REPRODUCTIONS)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_taken_or_refused(
    option: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(reproduction._MAKERS, name, lambda plan, say: ["made"])
    np.save(tmp_path / "t.npy", _whole())
    value = {"--totals": [str(tmp_path / "t.npy")], "--tables": ["1", "2", "3"], "--seeds": ["2"]}
    code = main(["reproduce", name, "--out", str(tmp_path / "out"), option, *value.get(option, [])])
    said = capsys.readouterr()
    if name in OPTIONS[option]:
        assert code == 0 and "made" in said.out
    else:
        assert code == 2 and f"{name} takes no {option}" in said.err and not (tmp_path / "out").exists()
        assert set(said.err.strip().split("these do: ")[1].split(", ")) == OPTIONS[option]


def test_totals_that_are_not_there_are_not_made_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "fashion-mnist-threshold", "--totals", str(tmp_path / "t.npz")]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "no such file" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_help_says_how_long_each_takes_and_who_takes_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith("  ") and line.split()}
    assert all(len(lines[name].split()) > 1 for name in reproduction.REPRODUCTIONS)
    assert "hours" in lines["fashion-mnist-frontier"] and "hour" in lines["pate++-fashion-mnist"]
    whole = "".join(said.split())
    for option in ("--paper", "--totals", "--tables"):
        takers = [name for name in reproduction.REPRODUCTIONS if name in OPTIONS[option]]
        assert ",".join(takers) in whole


def test_noise_at_a_price_is_what_it_was() -> None:
    """Measured before the three searches became one."""
    before = {0.5: 242.5, 1.0: 161.9, 2.0: 96.2, 3.0: 76.2, 4.05: 62.8, 5.04: 59.9, 6.0: 54.0}
    assert {e: frontier.sigma_for(labels=n, epsilon=e) for e, n in frontier.LABELS.items()} == before
    found = [
        threshold.affordable_sigma2(asked=asked, answered=answered, sigma1=sigma1, teachers=250)
        for asked, answered, sigma1 in ((500, 500, None), (1500, 1500, None), (1000, 500, 100.0))
    ]
    assert found == [36.3, 62.8, 38.9]
    for kind, values in {"LNMax": (1321.9, 353.8, 99.1), "GNMax": (934.8, 250.2, 70.1)}.items():
        again = [glyph_scale.noise_for(kind, queries=4000, epsilon=e) for e in (0.5, 2.0, 8.0)]
        assert again == list(values)


def test_the_least_noise_is_the_least() -> None:
    assert measures.least_noise(lambda noise: 1 / noise, epsilon=0.25) == 4.0
    assert measures.least_noise(lambda noise: 1 / noise, epsilon=5.0) == 1.1  # above one vote
    assert measures.least_noise(lambda noise: 1 / noise, epsilon=5.0, above=0.1) == 0.2
    with pytest.raises(InputError, match="even noise of 100 votes"):
        measures.least_noise(lambda noise: 1 / noise, epsilon=0.001, most=100)


def test_spreads_are_over_the_sample() -> None:
    assert measures.mean_and_sd([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    mean, spread = measures.mean_and_sd([4.0])
    assert mean == 4.0 and math.isnan(spread)
    assert (measures.shown_sd(spread), measures.shown_sd(0.26)) == ("-", "0.3")
    assert measures.accuracy_of([SimpleNamespace(accuracy=0.5)])[0] == 50.0
