"""Releases of the paper's MNIST size, 250 teachers on ten classes: mechanisms of any noise, and events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from pate_fed.privacy import ConfidentGNMax, DistributedGNMax, GNMax, LNMax, PrivacyEvent, Protection

REST: dict[str, Any] = {"num_teachers": 250, "num_classes": 10}
MNIST = ConfidentGNMax(**REST, threshold=200, sigma1=150, sigma2=40)
# The outcome's divergence takes a fifth of a second for each noise and order between 80 votes and 12,500
# (Laplace 175), beyond which totals are charged. Tests have examples of so much (`MUCH_NOISE`).
scales = st.one_of(st.floats(0.3, 3), st.just(12.0), st.floats(12_500.1, 1e5))
laplace_scales = st.one_of(st.floats(0.3, 2), st.just(6.0), st.floats(175.1, 1e5))
mechanisms = st.one_of(
    st.builds(lambda a, b: replace(MNIST, sigma1=a, sigma2=b), scales, scales),
    st.builds(lambda s: GNMax(**REST, sigma=s), scales),
    st.builds(lambda s: LNMax(**REST, scale=s), laplace_scales),
    st.builds(
        lambda s: DistributedGNMax(**REST, threshold=10.0, sigma_party=s, least_honest=3),
        st.one_of(st.floats(2, 6), st.floats(7_500, 1e5)),
    ),
)
MUCH_NOISE = (
    replace(MNIST, sigma2=300.0),
    DistributedGNMax(**REST, threshold=10.0, sigma_party=150.0, least_honest=3),
)


def event(mechanism: Any, asked: int, answered: int, protection: Protection | None = None) -> PrivacyEvent:
    return PrivacyEvent(
        mechanism=mechanism,
        asked=asked,
        answered=answered,
        protection=protection or Protection(),
        noise="test",
        private=False,
    )
