"""The chain's rules, as the writer and the verifier apply them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.privacy import (
    epsilon_of,
    total_cost,
    verify,
)
from pate_fed.privacy.ledger.chain import Chain, Outputs, _load, _replay
from pate_fed.privacy.ledger.file import read_only


def test_replay_refuses_a_batch_charged_twice(plain: Path) -> None:
    connection = read_only(plain)
    rows, _ = _load(connection)
    connection.close()
    rows[4]["batch_digest"] = rows[2]["batch_digest"]
    whole = verify(plain).chain
    outputs = [
        zip(range(6), *(column.tolist() for column in _columns(part)), strict=True) for part in whole.outputs
    ]
    chain = Chain(
        terms=whole.terms, public_key=None, created=whole.created, version=whole.version, head=rows[0]["hash"]
    )
    with pytest.raises(IntegrityError, match="row 4: the batch"):
        for row in rows[1:]:
            _replay(chain, row, list(outputs[row["seq"] - 1]))


def _columns(part: Outputs) -> tuple[Any, ...]:
    return part.index, part.answered.astype(np.int64), part.label


def test_order_of_charges_does_not_change_epsilon(made: tuple[Path, Path, str]) -> None:
    events = [entry.event for entry in verify(made[0]).chain.entries]
    epsilons = {epsilon_of(total_cost(np.random.default_rng(s).permutation(events)), 1e-5) for s in range(9)}
    assert len(epsilons) == 1
