"""The sanitised ε: what is released, what is refused, and what must not be shown."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy import (
    ConfidentGNMax,
    GNMax,
    Protection,
    SanitiseSettings,
    SeededNoise,
    SystemNoise,
    sanitised_epsilon,
)
from pate_fed.privacy.bounds.conversion import overhead
from pate_fed.privacy.bounds.gnmax import gnmax_rdp
from pate_fed.privacy.bounds.smooth import gnss_rdp
from pate_fed.privacy.mechanisms.data_dependent import check_sanitisable, data_dependent_rdp, public_part

SIGMA, CLASSES, ORDER, TEACHERS = 40.0, 10, 14.0, 250


def histogram(how: tuple[int, float, int], classes: int = CLASSES) -> np.ndarray:
    rng = np.random.default_rng(how[0])
    return rng.multinomial(how[2], rng.dirichlet([how[1]] * classes))


def test_conditions_that_fail_are_a_refusal_that_says_why() -> None:
    with pytest.raises(InputError, match="condition C6"):
        check_sanitisable(SanitiseSettings.at_order(25.0), sigma2=20.0, num_classes=10)
    check_sanitisable(SanitiseSettings.at_order(14.0), sigma2=40.0, num_classes=10)


@pytest.mark.parametrize(
    ("sigma2", "protection", "what"),
    [
        (1.5, Protection(), "below 2 votes"),
        (math.nan, Protection(), "below 2 votes"),
        (40.0, Protection(votes_moved=2), "one moved vote"),
        (40.0, Protection(unit="hospital", adjacency="add-or-remove-one"), "one moved vote"),
    ],
)
def test_what_is_not_derived_is_not_sanitised(sigma2: float, protection: Protection, what: str) -> None:
    with pytest.raises(InputError, match=what):
        check_sanitisable(
            SanitiseSettings.at_order(14.0), sigma2=sigma2, num_classes=10, protection=protection
        )


CONFIDENT = ConfidentGNMax(
    num_teachers=TEACHERS, num_classes=CLASSES, threshold=150, sigma1=60.0, sigma2=SIGMA
)


def run(seed: int = 1, **change: object) -> object:
    votes = np.stack([histogram((row, 0.05, TEACHERS)) for row in range(400)])
    arguments: dict[str, object] = {
        "mechanism": CONFIDENT,
        "totals": votes,
        "answered": votes.max(axis=1) > 150,
        "settings": SanitiseSettings.at_order(14.0),
        "delta": 1e-5,
        "noise": SeededNoise(seed),
    }
    return sanitised_epsilon(**{**arguments, **change})  # type: ignore[arg-type]


def test_the_release_is_its_mean_plus_noise_of_its_deviation() -> None:
    votes = np.stack([histogram((row, 0.05, TEACHERS)) for row in range(20)])
    few = {"totals": votes, "answered": votes.max(axis=1) > 150}
    results = [run(seed, **few) for seed in range(60)]
    mean, deviation = results[0].mean_do_not_publish, results[0].deviation_do_not_publish
    assert {result.mean_do_not_publish for result in results} == {mean}
    z = np.array([(result.epsilon - mean) / deviation for result in results])
    assert abs(z.mean()) < 4 / math.sqrt(60) and 0.7 < z.std() < 1.35
    exact = gnss_rdp(14.0, beta=results[0].beta, sigma_ss=results[0].sigma_ss)
    assert exact < results[0].cost <= exact + 0.0011  # what the noise's steps may cost


def test_what_is_released_covers_the_integer_noise_that_ran() -> None:
    """The mean is at least the data-dependent figure at the declared order, noise tails and ties included."""
    votes = np.stack([histogram((row, 0.05, TEACHERS)) for row in range(400)])
    answered = votes.max(axis=1) > 150
    ran = data_dependent_rdp(CONFIDENT, votes, answered, orders=[14.0])[0]
    plain = gnmax_rdp(votes[answered], SIGMA, [14.0])[:, 0].sum()
    result = run()
    spent = result.mean_do_not_publish - result.cost - overhead(np.array([14.0]), 1e-5)[0]
    assert spent >= ran > plain
    assert spent < 1.3 * ran


def test_no_draw_is_below_the_part_that_no_vote_moves() -> None:
    few = np.stack([histogram((row, 0.05, TEACHERS)) for row in range(4)])
    change = {"totals": few, "answered": np.ones(4, dtype=bool)}
    drawn = [run(seed, **change).epsilon for seed in range(20)]
    least = public_part(CONFIDENT, 4, settings=SanitiseSettings.at_order(14.0), delta=1e-5)
    assert least <= min(drawn) == pytest.approx(least, rel=1e-9) and max(drawn) > least


def test_what_depends_on_the_votes_is_not_shown() -> None:
    text = repr(run())
    assert "mean" not in text and "deviation" not in text and "epsilon=" in text


def test_a_run_without_answers_or_threshold_can_be_released() -> None:
    none = run(answered=np.zeros(400, dtype=bool))
    assert none.deviation_do_not_publish == 0.0 and none.epsilon > 0
    plain = run(mechanism=GNMax(num_teachers=TEACHERS, num_classes=CLASSES, sigma=SIGMA))
    assert plain.mean_do_not_publish < run().mean_do_not_publish
    assert run(noise=SystemNoise()).epsilon > 0


def test_settings_come_from_the_terms_alone() -> None:
    terms = {"sigma1": 150.0, "sigma2": 40.0, "num_classes": 10, "delta": 1e-5}
    settings_ = SanitiseSettings.for_study(asked=640, answered=300, **terms)
    assert 8 <= settings_.order <= 16 and settings_.beta == pytest.approx(0.25 / settings_.order)
    check_sanitisable(settings_, sigma2=40.0, num_classes=10)
    # A small spend asks for a high order, at which C6 fails; it is lowered until it holds.
    small = SanitiseSettings.for_study(asked=20, answered=10, **{**terms, "sigma2": 20.0})
    check_sanitisable(small, sigma2=20.0, num_classes=10)


@pytest.mark.parametrize(
    "change",
    [
        {"answered": np.ones(3, dtype=bool)},
        {"answered": np.ones(400)},
        {"delta": 0.0},
        {"mechanism": replace(CONFIDENT, num_teachers=10)},
        {"mechanism": replace(CONFIDENT, sigma2=1.5)},
    ],
)
def test_releases_that_do_not_fit_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError):
        run(**change)


@pytest.mark.parametrize(
    ("order", "beta", "sigma_ss"),
    [(1.0, 0.01, 5.0), (60.0, 0.01, 5.0), (5.0, -0.1, 5.0), (5.0, 0.01, 0.0), (math.nan, 0.01, 5.0)],
)
def test_bad_release_parameters_are_refused(order: float, beta: float, sigma_ss: float) -> None:
    with pytest.raises(InputError):
        SanitiseSettings(order=order, beta=beta, sigma_ss=sigma_ss)
