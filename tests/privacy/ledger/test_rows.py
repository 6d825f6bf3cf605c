"""Rows of a ledger: what comes back from them, in the bytes of earlier code."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from ledgers import MECHANISM, TERMS

from pate_fed.errors import IntegrityError
from pate_fed.privacy import (
    GNMax,
    InteractiveGNMax,
    Ledger,
    LNMax,
    Protection,
    verify,
)
from pate_fed.privacy.ledger.chain import coordinator_epsilon
from pate_fed.privacy.ledger.file import read_only
from pate_fed.privacy.ledger.rows import COLUMNS, charge_row, entry_from_row, row_hash
from pate_fed.privacy.mechanisms.events import hospital_noise


def test_every_mechanism_and_protection_comes_back_from_the_file(
    path: Path, charge: Any, release: Any
) -> None:
    rest = {"num_teachers": 50, "num_classes": 4}
    mechanisms = (
        MECHANISM,
        GNMax(**rest, sigma=np.float64(12.5)),
        LNMax(**rest, scale=20),
        InteractiveGNMax(**rest, threshold=np.float32(25), sigma1=9, sigma2=7, confidence=0.9),
    )
    odd = np.int64(3), np.float32(4), np.int8(8)  # NumPy's numbers, as callers may have them
    protection = Protection(unit="hospital", votes_moved=odd[0])  # type: ignore[arg-type]
    seen = hospital_noise(sigma_party=odd[1], survivors=odd[2], colluders=2)  # type: ignore[arg-type]
    terms = replace(
        TERMS, mechanisms=mechanisms, protection=protection, coordinator=seen, delta=1e-9, epsilon=60
    )
    predictions = np.full((20, 4), 0.25)
    with Ledger.create(path, terms) as ledger:
        assert ledger.terms == terms
        for batch, mechanism in enumerate(mechanisms):
            options: dict[str, Any] = {"protection": protection, "coordinator": replace(seen, survivors=9)}
            if isinstance(mechanism, InteractiveGNMax):
                options["predictions"] = predictions
            charge(ledger, batch, release(batch, mechanism=mechanism, **options))
        events, seen_epsilon = ledger.events(), coordinator_epsilon(ledger.terms, ledger.events())
        few = release(9, protection=protection, coordinator=replace(seen, survivors=7))
        with pytest.raises(IntegrityError, match="coordinator"):
            charge(ledger, 9, few)
    with Ledger.open(path, terms=terms) as ledger:
        assert ledger.events() == events
        assert coordinator_epsilon(ledger.terms, ledger.events()) == seen_epsilon
        assert seen_epsilon is not None and seen_epsilon > 0


FILES = Path(__file__).resolve().parents[2] / "files"


@pytest.mark.parametrize("name", ["signed", "hospital-noise", "plain"])
def test_rows_of_earlier_code_are_todays_but_its_ledgers_charged_totals(name: str, tmp_path: Path) -> None:
    """Written by commit 54f742a: every mechanism, a student's round, a signature, a sanitised release."""
    with ZipFile(FILES / "ledgers-54f742a.zip") as archive:
        path = Path(archive.extract(f"{name}.sqlite", tmp_path))
    for read in (verify, Ledger.open):
        with pytest.raises(IntegrityError, match="which charged noisy totals; go on with that version"):
            read(path)
    with closing(read_only(path)) as connection:
        found = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM entries WHERE seq > 0").fetchall()
    assert found
    for values in found:
        row = dict(zip(COLUMNS, values, strict=True))
        assert row_hash(charge_row(entry_from_row(row))) == row["hash"]
