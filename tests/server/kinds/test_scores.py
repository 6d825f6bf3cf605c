"""Studies that count held-out records: their figures are those of all hospitals' own, and nobody else's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.site import Site
from pate_fed import simulate
from pate_fed.cli.main import main
from pate_fed.config.data import load_study_data
from pate_fed.config.study import Study, read_study, study_from_dict
from pate_fed.errors import InputError
from pate_fed.kinds.make import make_terms
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.privacy.ledger import verify_independent
from pate_fed.privacy.ledger.report import verify_run
from pate_fed.report.html import plain_answers
from pate_fed.report.log import read_result
from pate_fed.report.own_records import HeldOutCount

RECORDS, HOSPITALS = 1000, 4


def _values(folder: Path, *, rare: float = 0.4, pool: bool = False, **sums: Any) -> dict[str, Any]:
    """Four hospitals' tables of two numbers, of which one tells the class; with public inputs or ranges."""
    rng = np.random.default_rng(3)
    names = [f"h{place}" for place in range(HOSPITALS)]
    for name, rows in ((names[0], RECORDS), *((each, RECORDS) for each in names[1:]), ("pool", 300)):
        ill = rng.random(rows) < rare
        x, z = np.clip(rng.normal(0.4 + 0.2 * ill, 0.15), 0, 1), rng.uniform(0, 1, rows)
        lines = [f"{a:.4f},{b:.4f},{'yes' if c else 'no'}" for a, b, c in zip(x, z, ill, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(("x,z,ill", *lines, "")), encoding="utf-8")
    table: dict[str, Any] = {
        "label": "ill",
        "classes": ["no", "yes"],
        "columns": {"x": "number", "z": "number"},
    }
    data: dict[str, Any] = {
        "dataset": "table",
        "private": [str(folder / f"{name}.csv") for name in names],
        "table": table if pool else {**table, "ranges": {"x": [0, 1], "z": [0, 1]}},
    }
    return {
        "study": {"seed": 5},
        "parties": {"num_clients": HOSPITALS, "records": RECORDS},
        "aggregation": {"aggregator": "class-sums"},
        "privacy": {"epsilon": 3.0},
        "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
        "data": data | ({"pool": str(folder / "pool.csv"), "num_queries": 250} if pool else {}),
        "sums": sums,
        "engine": {"backend": "inline"},
    }


def _run(folder: Path, values: Mapping[str, Any]) -> tuple[Any, Study]:
    simulate(values, run_dir=folder / "run", quiet=True)
    metrics = json.loads((folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    return metrics, read_study(folder / "run" / "study.toml")


def _held_out(study: Study, folder: Path) -> tuple[Any, Any]:
    """All hospitals' held-out records, and their classes."""
    data, inputs, labels = load_study_data(study), [], []
    for number in range(HOSPITALS):
        site = Site(party=f"h{number}", number=number, study=study, state_dir=folder, simulated=True)
        own = site.own_records()[site.held_out(study.sums.held_out)]
        inputs.append(data.private_images[own])
        labels.append(data.private_labels[own])
    return np.concatenate(inputs), np.concatenate(labels)


@pytest.mark.parametrize("secrecy", [{}, {"secrecy": {"secure_sum": True}}])
def test_without_public_inputs_figures_are_those_of_held_out_records(
    secrecy: dict[str, Any], tmp_path: Path
) -> None:
    """Each interval holds what all held-out records say exactly, and is no wider than it need be."""
    metrics, study = _run(tmp_path, _values(tmp_path) | secrecy)
    own = metrics["own_records"]
    assert study.sums.scores and metrics["accuracy"]["student"] is None
    student = SumsStudent.load(tmp_path / "run" / "student.npz")
    inputs, truth = _held_out(study, tmp_path)
    assert abs(len(truth) - 0.2 * HOSPITALS * RECORDS) < 90
    assert abs(own["records"] - len(truth)) <= 3 * own["noise"]
    said, chance = student.predict(inputs), student.predict_proba(inputs)[:, 1]
    yes, no = chance[truth == 1], chance[truth == 0]
    recalls = [float((said == label)[truth == label].mean()) for label in (0, 1)]
    true = {
        "accuracy": float((said == truth).mean()),
        "balanced": float(np.mean(recalls)),
        "auc": float((yes[:, None] > no).mean() + (yes[:, None] == no).mean() / 2),
    }
    for name, value in true.items():
        found = own[name]
        assert found["low"] <= value <= found["high"] and found["high"] - found["low"] < 0.25, (
            name,
            value,
            found,
        )
    for name, value in zip(("no", "yes"), recalls, strict=True):
        assert own["recall"][name]["low"] <= value <= own["recall"][name]["high"]
    assert own["operating_point"] is None and own["roc"] and own["calibration"]
    events = [entry.event for entry in verify_run(tmp_path / "run").chain.entries]
    assert [each.mechanism.held_out for each in events] == [False] * (len(events) - 1) + [True]
    assert metrics["privacy"]["student"]["data_independent"] <= 3.0
    assert verify_independent.verify(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "On hospitals&#39; own records" in page and "no part in the sums" in page
    (tmp_path / "run" / "report.html").unlink()
    assert main(["report", str(tmp_path / "run")]) == 0  # from the log alone
    assert (tmp_path / "run" / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("wins", [None, True])
def test_a_balanced_study_calls_the_rare_class_from_where_counts_say(
    wins: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operating point is in the student's file, whoever predicts with it; labels are by it, too."""
    if wins is not None:  # whatever the noise, so that the counts move the point
        monkeypatch.setattr(HeldOutCount, "_wins", lambda *_: wins)
    given = {} if wins is None else {"balanced": True}  # by itself where the sums say that it is rare
    values = _values(tmp_path, rare=0.1, pool=True, scores=True, rounds=0, **given)
    metrics, study = _run(tmp_path, values)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert ("Few of the records are of class yes (" in page) == (wins is None)
    assert wins is None or metrics["own_records"]["operating_point"] is not None
    student = SumsStudent.load(tmp_path / "run" / "student.npz")
    inputs, truth = _held_out(study, tmp_path)
    counts_alone = SumsStudent(student.feature_map, student.weights)
    said = student.predict(inputs)
    # More often than the sums alone say.
    assert 0.05 < said.mean() < 0.7 and (said >= counts_alone.predict(inputs)).all()
    with np.load(tmp_path / "run" / "labels.npz") as labels:
        released = labels["label"][labels["answered"]]
    assert np.array_equal(released, student.predict(load_study_data(study).public_images[: len(released)]))
    with np.load(tmp_path / "run" / "student.npz") as file:
        assert file["offset"][1] - file["offset"][0] != 0
    plain = counts_alone.predict(inputs)
    balanced = [
        np.mean([(each == label)[truth == label].mean() for label in (0, 1)]) for each in (said, plain)
    ]
    assert balanced[0] > balanced[1] + 0.05
    told = metrics["own_records"]["balanced"]
    assert abs(told["share"] - balanced[0]) <= told["high"] - told["low"]  # four deviations: of any seed
    plainly = dict(plain_answers(read_result(tmp_path / "run")))["How good is the student?"]
    chosen = metrics["own_records"]["operating_point"] is not None
    assert ("They also chose its operating point." in plainly) == chosen


def test_counts_are_the_default_where_nothing_else_tells_figures(tmp_path: Path) -> None:
    drawn, pool = (study_from_dict(_values(tmp_path, pool=each)).resolve() for each in (False, True))
    assert drawn.sums.scores and not pool.sums.scores
    few = {**_values(tmp_path), "parties": {"num_clients": HOSPITALS, "records": 20}}
    assert not study_from_dict(few).resolve().sums.scores
    assert not study_from_dict(_values(tmp_path, scores=False)).resolve().sums.scores
    for scores in (None, True):
        hospital = {**_values(tmp_path), "privacy": {"epsilon": 3.0, "unit": "hospital"}}
        hospital["sums"] = {"most_records": 100} | ({} if scores is None else {"scores": scores})
        if scores is None:
            assert study_from_dict(hospital).resolve().sums.scores is False
            continue
        with pytest.raises(InputError, match=r"scores.*false is meant with the unit hospital"):
            study_from_dict(hospital).resolve()


def test_another_student_than_the_one_that_is_counted_by_is_refused(tmp_path: Path) -> None:
    values = {**_values(tmp_path, pool=True, scores=True), "student": {"name": "forest"}}
    with pytest.raises(InputError, match="held-out records are counted by its weights"):
        simulate(values, run_dir=tmp_path / "run", quiet=True)


def test_a_study_says_what_is_left_out_before_it_begins(tmp_path: Path) -> None:
    """The words that hospitals agree to."""
    study = study_from_dict(_values(tmp_path, rounds=2)).resolve()
    terms = make_terms(study, load_study_data(study))
    leaves = dict(terms.words.leaves)
    assert leaves["sums"].startswith("At most 3 times one table of")
    assert leaves["counts"] == (
        "20% of your records are left out of these sums and counted once. Your own program draws them by a "
        "key that others can make, too: it follows from the study's seed and your hospital's name. The table "
        "has 32 rows and 2 columns: how many of them have a class, by the class that the public model says "
        "and by how sure it is. A record has one count."
    )
    assert (
        "at most 3 times, once a round, and gives counts of the records left out once"
        in dict(terms.words.caps)["answers"]
    )
    assert "or, if held out, one count" in terms.words.protects
    once = study_from_dict(_values(tmp_path, rounds=0)).resolve()
    words = make_terms(once, load_study_data(once)).words
    assert dict(words.leaves)["sums"].startswith("Once, one table of")
