"""Laws of a query's outcome on the lattice, against the plain sum over all noise of both totals."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pate_fed.privacy.bounds.lattice import CoarseLattice, Lattice, Region
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE, NoiseLaw
from pate_fed.privacy.checks import Floats

REGION = Region(low=3, both=4, ahead=6, gap=5)
Cells = list[tuple[int, int]]


@cache
def _chances(law: NoiseLaw, u: int, v: int, key: float) -> Floats:
    """That a, b, another wins, where the others' best total is 0 and has the tie key `key`."""
    reach = np.arange(-42, 43)
    weight = np.exp(-(reach**2) / (2 * law.scale**2) if law.kind == GAUSSIAN else -abs(reach) / law.scale)
    mass = np.outer(weight, weight) / weight.sum() ** 2
    a, b = np.meshgrid(u + reach, v + reach, indexing="ij")
    first = np.where((a > 0) & (a > b), 1.0, 0.0) + np.where((a > 0) & (a == b), 0.5, 0.0)
    tied = np.where((a == 0) & (b == 0), (1 - key**2) / 2, 0.0)
    first += np.where((a == 0) & (b < 0), 1 - key, 0.0) + tied
    second = np.where((b > 0) & (b > a), 1.0, 0.0) + np.where((b > 0) & (a == b), 0.5, 0.0)
    second += np.where((b == 0) & (a < 0), 1 - key, 0.0) + tied
    found = [float((mass * each).sum()) for each in (first, second)]
    return np.array([*found, 1 - sum(found)])


def _expected(law: NoiseLaw, cells: Cells, coefficient: int) -> Floats:
    """Bernstein coefficient 0 or 1 of the chances' quadratic in the tie key: (3, cells)."""
    found = []
    for u, v in cells:
        start, half, end = (_chances(law, u, v, key) for key in (0.0, 0.5, 1.0))
        found.append(start if coefficient == 0 else 2 * half - (start + end) / 2)
    return np.array(found).T


def _rows() -> list[Cells]:
    """Pairs of the region by their difference, in the order of the lattice."""
    spans = [(gap, *REGION.span(gap)) for gap in range(-REGION.widest, REGION.widest + 1)]
    return [[(u, u - gap) for u in range(low, high + 1)] for gap, low, high in spans]


def test_the_spans_of_a_region_are_what_it_holds() -> None:
    places = np.arange(-20, 21)
    inside = REGION.holds(places[:, None], places[None, :])
    held = {(int(places[row]), int(places[column])) for row, column in zip(*np.nonzero(inside), strict=True)}
    assert held == {cell for row in _rows() for cell in row} and 0 < len(held) <= REGION.cells


@pytest.mark.parametrize("shift", [1, 2])
@pytest.mark.parametrize("law", [NoiseLaw(GAUSSIAN, 1.5), NoiseLaw(LAPLACE, 1.2)], ids=str)
def test_each_cell_has_the_chances_of_its_totals_and_of_its_neighbour_s(law: NoiseLaw, shift: int) -> None:
    found = [
        np.hstack(side) for side in zip(*Lattice(law, REGION, shift=shift).pairs(lambda p: p), strict=True)
    ]
    cells = _rows()
    beside = [[(u - shift, v + shift) for u, v in row] for row in cells]
    for chances, places in zip(found, (cells, beside), strict=True):
        expected = [_expected(law, row, coefficient) for row in places if row for coefficient in (0, 1)]
        np.testing.assert_allclose(chances, np.hstack(expected), rtol=1e-9, atol=1e-13)


def test_a_coarse_lattice_has_the_same_chances_at_its_points() -> None:
    law, step = NoiseLaw(GAUSSIAN, 3.0), 2
    rows = list(CoarseLattice(law, REGION, step=step).pairs(lambda chances: chances))
    places = np.arange(-(REGION.low // step), 20) * step
    inside = REGION.holds(places[:, None], places[None, :])
    cells = [(int(places[i]), int(places[j])) for i, j in zip(*np.nonzero(inside), strict=True)]
    lower = [(u - 1, v - 1) for u, v in cells]
    for (mine, other), at, coefficient in zip(rows, (cells, cells, lower), (0, 1, 0), strict=True):
        np.testing.assert_allclose(mine, _expected(law, at, coefficient), rtol=1e-9, atol=1e-13)
        beside = [(u - 1, v + 1) for u, v in at]
        np.testing.assert_allclose(other, _expected(law, beside, coefficient), rtol=1e-9, atol=1e-13)
