"""Moved votes in closed form against votes that are moved by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.privacy.bounds.gnmax import gnmax_log_q
from pate_fed.privacy.bounds.smooth import VoteMoves

SIGMA, CLASSES, ORDER, TEACHERS = 40.0, 10, 14.0, 250


HISTOGRAM = st.tuples(
    st.integers(0, 2**32 - 1), st.floats(0.02, 2.0), st.sampled_from([TEACHERS, TEACHERS - 7])
)


def histogram(how: tuple[int, float, int], classes: int = CLASSES) -> np.ndarray:
    rng = np.random.default_rng(how[0])
    return rng.multinomial(how[2], rng.dirichlet([how[1]] * classes))


@given(how=HISTOGRAM, classes=st.sampled_from([2, 3, 10]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_moves_are_what_moving_by_hand_gives(how: tuple[int, float, int], classes: int) -> None:
    votes = histogram(how, classes)
    moves = VoteMoves(votes[None], sigma=SIGMA, margin=0)
    query = np.zeros(1, dtype=np.int64)
    for apart in (1, -1):
        hand = np.sort(votes)[::-1].copy()
        for step in range(60):
            got = moves.log_q(np.array([step]), query, np.array([apart]))[0]
            assert got == pytest.approx(gnmax_log_q([hand], SIGMA)[0], rel=1e-9)
            if hand[1] == 0 if apart > 0 else hand[0] - hand[1] < 2:
                break
            hand[0] += apart
            hand[1] -= apart
            hand = np.sort(hand)[::-1]


def test_integer_tails_stay_below_the_margin() -> None:
    """What the release assumes: discrete noise with ties as losses is below gaps less one vote."""
    for sigma in (2.0, 3.7, 40.0):
        for gaps in ([50, 3, 1], [9, 9, 9], [120, 60, 0]):
            votes = np.array([[130 - gap for gap in (0, *gaps)]])
            moves = VoteMoves(votes, sigma=sigma, margin=1)
            margin = moves.log_q(np.zeros(1, dtype=np.int64), moves.every)[0]
            assert gnmax_log_q(votes, sigma, discrete=True)[0] <= margin + 1e-12
