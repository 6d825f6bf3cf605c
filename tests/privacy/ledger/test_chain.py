"""The chain's rules, as the writer and the verifier apply them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.errors import IntegrityError
from pate_fed.privacy import (
    ConfidentGNMax,
    Ledger,
    LedgerTerms,
    Protection,
    SeededNoise,
    epsilon_of,
    total_cost,
    verify,
)
from pate_fed.privacy.ledger.chain import Chain
from pate_fed.privacy.ledger.file import read_only
from pate_fed.privacy.ledger.verify import _load, _replay

MECHANISM = ConfidentGNMax(num_teachers=50, num_classes=4, threshold=30, sigma1=20, sigma2=10)


TERMS = LedgerTerms(
    study_digest="cd" * 32,
    delta=1e-5,
    epsilon=50.0,
    mechanisms=(MECHANISM,),
    protection=Protection(),
    noise=SeededNoise(0).kind,
    private=False,
)


KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A ledger with five charges, the same signed, and the unsigned one's head after two."""
    folder = tmp_path_factory.mktemp("ledgers")
    paths = folder / "plain.sqlite", folder / "signed.sqlite"
    early = ""
    for path, key in zip(paths, (None, KEY), strict=True):
        with Ledger.create(path, TERMS, key=key) as ledger:
            for batch in range(5):
                totals = np.random.default_rng(batch).multinomial(50, [0.7, 0.1, 0.1, 0.1], size=6)
                out = MECHANISM.release(totals, SeededNoise(batch))
                digest = hashlib.sha256(bytes([batch])).hexdigest()
                ledger.charge(
                    out.event,
                    batch_digest=digest,
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


def test_replay_refuses_a_batch_charged_twice(plain: Path) -> None:
    connection = read_only(plain)
    rows, outputs, _ = _load(connection)
    connection.close()
    rows[4]["batch_digest"] = rows[2]["batch_digest"]
    whole = verify(plain).chain
    chain = Chain(
        terms=whole.terms, public_key=None, created=whole.created, version=whole.version, head=rows[0]["hash"]
    )
    with pytest.raises(IntegrityError, match="row 4: the batch"):
        for row in rows[1:]:
            _replay(chain, row, outputs[row["seq"]])


def test_order_of_charges_does_not_change_epsilon(made: tuple[Path, Path, str]) -> None:
    events = [entry.event for entry in verify(made[0]).chain.entries]
    epsilons = {epsilon_of(total_cost(np.random.default_rng(s).permutation(events)), 1e-5) for s in range(9)}
    assert len(epsilons) == 1
