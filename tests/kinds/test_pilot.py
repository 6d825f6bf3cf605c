"""A pilot of class sums on labelled public inputs: what it says beside a study of as many records."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.cli.main import main
from pate_fed.kinds.pilot import Records, SumsPlan, apart, pilot_sums, pilot_votes, sums_student
from pate_fed.learning import TeacherSettings
from pate_fed.learning.features.build import LinearAndKernel, build_feature_map
from pate_fed.learning.features.directions import DirectionFeatures
from pate_fed.learning.features.feature_map import BINS, DIRECTIONS, LINEAR, FeatureMap, FeatureSettings
from pate_fed.learning.features.kernel import gaussian_kernel
from pate_fed.privacy import Protection
from pate_fed.privacy.planning.choice import Sites, Trial, choose, hit_rate

SITES: dict[str, Any] = {"hospitals": 4, "teachers": 4, "records": 500, "classes": 2, "delta": 1e-5}


def _rows(count: int, seed: int) -> tuple[Any, Any]:
    """Rows of six numbers whose sum tells the class, mostly."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 6))
    return rows, (rows.sum(axis=1) + rng.normal(size=count) > 0).astype(np.int64)


def _made(count: int, *, name: str = LINEAR, owners: int = 1, seed: int = 0) -> tuple[Records, FeatureMap]:
    rows, labels = _rows(count, seed)
    features = build_feature_map(FeatureSettings(name=name, columns=(1,) * 6, dimension=8), _rows(300, 1)[0])
    return Records(rows, labels, np.arange(count) % owners), features


@pytest.mark.parametrize("epsilon", [0.2, 3.0])
def test_a_pilot_of_few_inputs_says_what_a_study_of_more_records_gives(epsilon: float) -> None:
    public, features = _made(300, seed=1)
    private, _ = _made(2000)
    plan = SumsPlan.of(Sites(epsilon=epsilon, **SITES), features, public.inputs)
    asked, truth = _rows(4000, 2)
    kept, fit = features.features(private.inputs), plan.fit(features, public.inputs)
    runs = [
        (sums_student(features, private, fit, plan, seed=s, kept=kept).predict(asked) == truth).mean()
        for s in range(4)
    ]
    made = partial(SumsPlan.of, Sites(epsilon=epsilon, **SITES))
    trial = pilot_sums(features.settings, public, made)
    assert trial.rows == 219 and abs(trial.expected(2000, 2) - np.mean(runs)) < trial.margin(2000, 2) < 0.13
    assert trial == pilot_sums(features.settings, public, made)


@pytest.mark.parametrize(("name", "anchors"), [(LINEAR, 8), (DIRECTIONS, 150), (BINS, 0)])
def test_a_pilot_s_records_are_no_anchors_nor_of_their_patients(name: str, anchors: int) -> None:
    rows, labels = _rows(300, 1)
    public = Records(rows, labels, 0 * labels, np.arange(300) // 4)
    settings = FeatureSettings(name=name, columns=(1,) * 6, dimension=8)
    pool, others = apart(settings, public, 0)
    assert len(pool) == 300 and {*map(tuple, pool)} == {*map(tuple, rows)}
    assert len(others.labels) == 300 - anchors and others.patients is not None
    features = build_feature_map(settings, pool)
    base = features.base if isinstance(features, DirectionFeatures) else features
    if isinstance(base, LinearAndKernel):
        points, kernel = base.kernel.points, base.kernel.embedding
        assert len(points) == anchors
        nearest = gaussian_kernel(kernel.encode(others.inputs), points.astype(np.float32)).max(axis=1)
        assert nearest.max() < 0.999
        owners = public.patients[
            gaussian_kernel(points.astype(np.float32), kernel.encode(rows)).argmax(axis=1)
        ]
        assert len({*owners.tolist()} & {*others.patients.tolist()}) <= 1  # which the border cuts


def test_more_noise_and_whole_hospitals_and_patients_give_less() -> None:
    public, features = _made(300, seed=1)

    def right(
        epsilon: float, unit: str = "record", *, by: FeatureMap = features, of: Records = public
    ) -> float:
        sites = Sites(epsilon=epsilon, protection=Protection(unit=unit), **SITES)
        plan = SumsPlan.of(sites, by, public.inputs)
        assert (plan.most is not None) == (unit == "hospital")
        return pilot_sums(by.settings, of, partial(SumsPlan.of, sites), own=500).right

    noisy, usual, little = right(0.02), right(0.2), right(5.0)
    assert noisy < usual - 0.05 < little - 0.05
    order = np.argsort(public.labels)
    named = Records(public.inputs[order], public.labels[order], public.owners, np.arange(300) // 10)
    assert right(0.2, "patient", of=named) < usual
    assert right(0.2, "hospital", by=_made(2, name=DIRECTIONS)[1]) < usual


def test_beside_a_rare_class_each_counts_alike() -> None:
    rows, labels = _rows(2000, 1)
    kept = (labels == 0) | (np.arange(2000) % 12 == 0)
    public = Records(rows[kept], labels[kept], 0 * labels[kept])
    sites = Sites(epsilon=0.01, **SITES)
    found = pilot_sums(_made(2)[1].settings, public, partial(SumsPlan.of, sites))
    assert found.alike and abs(found.right - 0.5) < 0.15 < 0.3 < np.mean(public.labels == 0) - 0.5
    teacher = TeacherSettings(name="random-forest", trees=3)
    votes = pilot_votes(teacher, public, replace(sites, teachers=8, hospitals=8, pilot=found))
    assert votes.shares.sum(axis=1) == pytest.approx(1.0)
    plain, tried = (replace(sites, votes=votes, pilot=each) for each in (None, found))
    assert tried.alike and tried.agreement < plain.agreement
    assert "each counts alike" in "\n".join(choose(tried, None).lines())


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_more_records_of_others_than_the_pool_waver_less(classes: int) -> None:
    """1/d² is a line in the variance that is drawn: d of 2 and 1 at m and m/4 make it 0 at last."""
    right, fewer = (hit_rate(each, classes) for each in (2.0, 1.0))
    trial = Trial(rows=100, right=right, fewer=fewer, error=0.0, pool=10**9)
    assert trial.expected(100, classes) == pytest.approx(right, abs=1e-3)
    assert trial.expected(400, classes) == pytest.approx(hit_rate(4.0, classes), abs=2e-3)
    own = Trial(rows=100, right=right, fewer=fewer, error=0.0, pool=200)
    assert own.expected(400, classes) < trial.expected(400, classes)
    unsure = Trial(rows=100, right=right, fewer=fewer, error=0.5, pool=10**9)
    assert unsure.expected(400, classes) == pytest.approx(right, abs=1e-3)


def test_plan_tries_a_study_s_own_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, labels = _rows(200, 1)
    names = [f"x{at}" for at in range(6)]
    lines = [",".join([*names, "ill"])]
    lines += [
        ",".join([*(f"{v:.4f}" for v in row), ["no", "yes"][own]])
        for row, own in zip(rows, labels, strict=True)
    ]
    (tmp_path / "pool.csv").write_text("\n".join(lines), encoding="utf-8")
    columns = "\n".join(f'{name} = "number"' for name in names)
    study = tmp_path / "study.toml"
    text = (
        '[data]\ndataset = "table"\npool = "pool.csv"\n[data.table]\nlabel = "ill"\nclasses = ["no", "yes"]\n'
        f"[data.table.columns]\n{columns}\n[parties]\nnum_clients = 6\n"
        "[sums]\ndimension = 8\n[privacy]\nepsilon = 1.0\n"
    )
    study.write_text(text, encoding="utf-8")
    command = ["plan", "--config", str(study), "--records", "300", "--pilot", "--format", "json"]
    assert main(command) == 0
    alone, _, sums = json.loads(capsys.readouterr().out)["choice"]["ways"]
    assert sums["rests"].startswith("a pilot of 144 labelled public inputs; 1,800 records")
    assert 0.7 < alone["expected"] < 0.9 and 0.7 < sums["expected"] < 0.9
    assert main(["plan", "--epsilon", "1", "--pilot"]) == 2
    assert "--pilot: --config with a study" in capsys.readouterr().err
    (tmp_path / "pool.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines), encoding="utf-8")
    assert main(command) == 2
    assert "0 public inputs have a label" in capsys.readouterr().err
