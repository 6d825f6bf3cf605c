"""Releases of the paper's MNIST size, 250 teachers on ten classes: mechanisms of any noise, and events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from pate_fed.privacy import ConfidentGNMax, DistributedGNMax, GNMax, LNMax, PrivacyEvent, Protection

REST: dict[str, Any] = {"num_teachers": 250, "num_classes": 10}
MNIST = ConfidentGNMax(**REST, threshold=200, sigma1=150, sigma2=40)
# Between 12 and 256 votes the outcome's divergence takes tens of milliseconds for each noise: one is tried.
scales = st.one_of(st.floats(0.3, 12), st.just(40.0), st.floats(256.1, 1e5))
laplace_scales = st.one_of(st.floats(0.3, 6), st.floats(96.1, 1e5))
mechanisms = st.one_of(
    st.builds(lambda a, b: replace(MNIST, sigma1=a, sigma2=b), scales, scales),
    st.builds(lambda s: GNMax(**REST, sigma=s), scales),
    st.builds(lambda s: LNMax(**REST, scale=s), laplace_scales),
    st.builds(
        lambda s: DistributedGNMax(**REST, threshold=10.0, sigma_party=s, least_honest=3),
        st.one_of(st.floats(2, 6), st.floats(150, 1e5)),
    ),
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
