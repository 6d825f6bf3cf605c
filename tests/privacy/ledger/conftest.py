"""Releases of 50 teachers on four classes, and their charges."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledgers import KEY, MECHANISM, TERMS

from pate_fed.privacy import Ledger, Release, SeededNoise


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


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A ledger with five charges, the same signed, and the unsigned one's head after two."""
    folder = tmp_path_factory.mktemp("ledgers")
    paths = folder / "plain.sqlite", folder / "signed.sqlite"
    terms, early = replace(TERMS, study_digest="cd" * 32, epsilon=50.0), ""
    for path, key in zip(paths, (None, KEY), strict=True):
        with Ledger.create(path, terms, key=key) as ledger:
            for batch in range(5):
                totals = np.random.default_rng(batch).multinomial(50, [0.7, 0.1, 0.1, 0.1], size=6)
                out = MECHANISM.release(totals, SeededNoise(batch))
                ledger.charge(
                    out.event,
                    batch_digest=hashlib.sha256(bytes([batch])).hexdigest(),
                    index=np.arange(6) + 10 * batch,
                    answered=out.answered,
                    label=out.label,
                )
                if batch == 1 and key is None:
                    early = ledger.head
    return *paths, early


@pytest.fixture
def plain(made: tuple[Path, Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copy(made[0], tmp_path / "ledger.sqlite"))
