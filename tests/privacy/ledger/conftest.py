"""Releases of 50 teachers on four classes, and their charges."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.privacy import ConfidentGNMax, Ledger, Release, SeededNoise

MECHANISM = ConfidentGNMax(num_teachers=50, num_classes=4, threshold=30, sigma1=20, sigma2=10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture(scope="session")
def digest() -> Callable[[int], str]:
    """The digest of a batch's number."""
    return lambda batch: hashlib.sha256(f"batch {batch}".encode()).hexdigest()


@pytest.fixture(scope="session")
def release() -> Callable[..., Release]:
    """A release of random totals, the same for the same seed."""

    def draw(seed: int, *, queries: int = 20, mechanism: Any = MECHANISM, **options: Any) -> Release:
        totals = np.random.default_rng(seed).multinomial(50, [0.7, 0.1, 0.1, 0.1], size=queries)
        made: Release = mechanism.release(totals, SeededNoise(seed), **options)
        return made

    return draw


@pytest.fixture(scope="session")
def charge(digest: Callable[[int], str], release: Callable[..., Release]) -> Callable[..., Release]:
    """Charge a ledger with a batch: its own release, or a given one."""

    def write(ledger: Ledger, batch: int, made: Release | None = None) -> Release:
        made = release(batch) if made is None else made
        index = np.arange(made.asked) + 100 * batch
        ledger.charge(
            made.event, batch_digest=digest(batch), index=index, answered=made.answered, label=made.label
        )
        return made

    return write
