"""PateClassifier: scikit-learn's contract, no private row is taken for a public one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from pate_fed import PateClassifier, Run
from pate_fed.errors import InputError, PateFedError

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]


def test_it_learns_from_rows_and_public_rows_or_bounds() -> None:
    public = np.random.default_rng(1).permutation(X)[:60] + 0.05
    for made, more in (
        (PateClassifier(epsilon=8), {"X_public": public}),
        (PateClassifier(epsilon=8, bounds=(0, 8)), {}),
        (PateClassifier(epsilon=8, bounds=([4, 1, 1, 0], [8, 5, 7, 3]), n_parties=6), {}),
    ):
        made = made.set_params(random_state=0).fit(X, NAMES, **more)
        assert made.score(X, NAMES) > 0.7 and made.n_features_in_ == 4
        assert made.classes_.tolist() == ["setosa", "versicolor", "virginica"]
        chances = made.predict_proba(X)
        assert chances.shape == (150, 3) and np.allclose(chances.sum(axis=1), 1)
        assert 7 < made.epsilon_ <= 8 and made.delta_ == 1e-5 and not made.private_


def test_private_rows_are_never_taken_for_public_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"has no public rows, and takes no private ones for them: give fit"):
        PateClassifier().fit(X, Y)
    asked: list[Any] = []

    def told(study: Any, *, dataset: Any, **_: Any) -> Any:
        asked.append(dataset)
        raise InputError("far enough")

    monkeypatch.setattr("pate_fed.cli.classifier.simulate", told)
    for scale in (1.0, 3.0):  # what stands for public rows is the same, whatever the private ones are
        with pytest.raises(InputError, match="far enough"):
            PateClassifier(bounds=(0, 8)).fit(scale * X, Y)
    assert np.array_equal(asked[0]["public_images"], asked[1]["public_images"])
    assert not np.isin(asked[0]["public_images"], X).any()


def test_noise_protects_unless_a_fit_is_to_repeat(tmp_path: Path) -> None:
    made = PateClassifier(bounds=(0, 8), run_dir=tmp_path / "run").fit(X, Y)
    assert made.private_ and Run.load(tmp_path / "run").epsilon == made.epsilon_
    twice = [PateClassifier(bounds=(0, 8), random_state=3).fit(X, Y).predict_proba(X) for _ in range(2)]
    assert np.array_equal(*twice) and not np.array_equal(twice[0], made.predict_proba(X))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n_parties": 2}, "4"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"bounds": (1, 1)}, "finite numbers, lowest below highest, are meant"),
        ({"classes": [0, 1]}, "y has classes other than"),
        ({"study": {"sums": {"bin": 3}}}, "bin"),
    ],
)
def test_what_is_wrong_is_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises((PateFedError, ValueError), match=said):
        PateClassifier(**{"bounds": (0, 8), **given}).fit(X, Y)


def test_in_a_pipeline_and_in_cross_validation() -> None:
    """A step that learns nothing of the rows; and public rows that go the same way as private ones."""
    made = make_pipeline(
        FunctionTransformer(lambda rows: rows / 8), PateClassifier(bounds=(0, 1), epsilon=8, random_state=0)
    )
    assert cross_val_score(made, X, NAMES, cv=3).mean() > 0.7
    with sklearn.config_context(enable_metadata_routing=True):
        last = PateClassifier(epsilon=8, random_state=0).set_fit_request(X_public=True)
        piped = make_pipeline(StandardScaler(), last, transform_input=["X_public"])
        assert piped.fit(X, NAMES, X_public=X[::2] + 0.05).score(X, NAMES) > 0.7


def test_another_way_is_a_study_of_its_own() -> None:
    votes = {"aggregation": {"aggregator": "gnmax", "sigma2": 2.0}, "privacy": {"allow_weak": True}}
    few = {"queries": {"labels": 30, "max_queries": 30}, "teacher": {"trees": 3}, "student": {"trees": 10}}
    made = PateClassifier(n_parties=15, epsilon=200, bounds=(0, 8), study=votes | few, random_state=0)
    assert made.fit(X, Y).predict(X).shape == (150,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_s_own_checks() -> None:
    """All of its 55, but those that want pandas or an array API where they are not there."""
    found = check_estimator(PateClassifier(bounds=(-10, 10), epsilon=8), on_fail=None, on_skip=None)
    assert [each["check_name"] for each in found if each["status"] == "failed"] == []
    assert sum(each["status"] == "passed" for each in found) >= 50
