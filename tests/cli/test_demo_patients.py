"""The demonstration's patients: of the ages that a hospital treats, and what a chart could hold."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pate_fed.cli.demo_patients import COLUMNS, SITES, draw_patients


def test_hospitals_share_out_all_ages() -> None:
    ends = [site.ages for site in SITES]
    assert all(here[1] == there[0] for here, there in pairwise(ends))
    assert len({site.name for site in SITES}) == len(SITES) == 4


def test_patients_are_of_these_ages_and_the_same_for_a_seed() -> None:
    drawn, again = (draw_patients(np.random.default_rng(3), 500, (40, 65)) for _ in range(2))
    assert drawn.signs.shape == (500, len(COLUMNS)) and np.array_equal(drawn.signs, again.signs)
    assert 40 <= drawn.signs[:, 0].min() and drawn.signs[:, 0].max() <= 65
    assert drawn.signs[:, -1].max() <= 100  # oxygen, in percent
    assert set(drawn.classes) == {0, 1} and 0.35 < drawn.classes.mean() < 0.55
    np.testing.assert_allclose(drawn.signs, np.round(drawn.signs, 1))
