"""A study's authority, and hospitals that it admits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import make_terms

from pate_fed.identity import (
    Authority,
    HospitalIdentity,
    make_request,
)
from pate_fed.kinds.terms import Terms


@pytest.fixture(scope="session")
def terms() -> Terms:
    """A small study's terms."""
    return make_terms(
        num_classes=2,
        image_shape=(3,),
        pool_size=10,
        num_clients=3,
        least_clients=2,
        aggregator="gnmax",
        labels=5,
        max_queries=5,
    )


@pytest.fixture
def authority(terms: Terms, tmp_path: Path) -> Authority:
    return Authority.init(tmp_path / "ca", address="coordinator.example:9092", terms=terms.to_json(), days=90)


@pytest.fixture
def admit(authority: Authority) -> Callable[..., HospitalIdentity]:
    """`admit(folder, name)` makes a hospital's keys in the folder and admits it."""

    def admit(folder: Path, name: str = "north", days: int = 60) -> HospitalIdentity:
        admission = authority.admit(make_request(folder, name), days=days)
        admission.write(folder / f"{name}.admission")
        return HospitalIdentity.offered(folder, folder / f"{name}.admission").take()

    return admit
