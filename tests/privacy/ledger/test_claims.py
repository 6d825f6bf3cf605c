"""A ledger of a mechanism of one's own: verified with its code, and never with code that it only names."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import foreign_mechanisms
import numpy as np
import own_parts
import pytest

from pate_fed.errors import BudgetError, InputError, IntegrityError
from pate_fed.privacy import Ledger, LedgerTerms, Protection, SeededNoise
from pate_fed.privacy.ledger import verify_independent
from pate_fed.privacy.ledger.report import accountants, describe, verify
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.privacy.mechanisms.class_sums import ClassSums
from pate_fed.privacy.mechanisms.events import Mechanism
from pate_fed.privacy.mechanisms.own import OwnMechanism, own_mechanism
from pate_fed.privacy.protection import FEATURE_MAP, Assumption
from pate_fed.structure.parts import part_identity

NAME = "own_parts:GeometricMax"
NOISE = SeededNoise(0)


def mechanism(scale: float = 10.0, *, digest: str | None = None) -> OwnMechanism:
    identity = part_identity(NAME, "aggregator")
    identity = identity if digest is None else replace(identity, digest=digest)
    parameters = {"scale": scale}
    return own_mechanism(
        own_parts.GeometricMax, classes=3, num_teachers=10, parameters=parameters, identity=identity
    )


def ledger_terms(of: Mechanism, **more: object) -> LedgerTerms:
    values: dict[str, object] = {"study_digest": "ab" * 32, "delta": 1e-5, "mechanisms": (of,)}
    values |= {"protection": Protection(), "noise": NOISE.kind, "private": False}
    return LedgerTerms(**{**values, "most_asked": 40, "most_answered": 40, **more})  # type: ignore[arg-type]


def write(path: Path, terms: LedgerTerms, *, batches: int = 2) -> Path:
    [of] = terms.mechanisms
    assert isinstance(of, OwnMechanism)
    with Ledger.create(path, terms) as ledger:
        for batch in range(batches):
            made = of.release(np.tile([7, 2, 1], (8, 1)), NOISE)
            ledger.charge(
                made.event,
                batch_digest=f"{batch:064x}",
                index=np.arange(8) + 8 * batch,
                answered=made.answered,
                label=made.label,
            )
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("claims") / "ledger.sqlite", ledger_terms(mechanism()))


def test_with_its_code_named_it_is_verified(path: Path) -> None:
    report = verify(path, aggregators=(NAME,))
    report.require_checked()
    assert report.claims == (f"{NAME}: its code, as it is here, claims no more than was charged",)
    assert report.to_dict()["status"] == "intact" and not report.unchecked
    assert report.guaranteed == guaranteed_epsilon(ledger_terms(mechanism()))
    assert Ledger.read(path, aggregators={NAME: None}).claims == report.claims


def test_without_a_name_no_code_is_loaded_and_that_is_no_success(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own_parts", None)  # whoever imports it fails
    report = verify(path)
    assert report.epsilon > 0 and report.to_dict()["status"] == "claim not checked"
    assert "claim not checked" in repr(report)
    with pytest.raises(
        InputError, match=f"only if you name it: --aggregator {NAME}, or in Python Ledger.read"
    ):
        report.require_checked()
    with pytest.raises(
        InputError, match=r"cannot be used here: .*own_parts.*is not installed|no module own_parts"
    ):
        verify(path, aggregators=(NAME,)).require_checked()
    assert any(line.startswith("NOT PROVEN: every ε rests on") for line in describe(path))


def test_what_is_said_for_python_works(path: Path) -> None:
    with pytest.raises(InputError) as error:
        verify(path).require_checked()
    call = str(error.value).partition("in Python ")[2]
    named = eval(call, {"Ledger": Ledger, "RUN_DIR": path.parent})
    named.require_checked()
    assert named.claims


def test_an_installed_entry_point_needs_no_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = {"theirs": NAME}
    monkeypatch.setattr("pate_fed.privacy.ledger.report.entry_points", lambda kind: offered)
    assert verify(path).claims and not verify(path).unchecked
    assert verify(path, aggregators=None).unchecked  # and `ledger show` loads not even that
    offered["theirs"] = "own_parts:another"
    assert verify(path).unchecked


def test_every_place_with_an_ε_says_whose_word_it_is(path: Path) -> None:
    report = verify(path, aggregators=(NAME,))
    digest = part_identity(NAME, "aggregator").digest
    for lines in (report.lines(), describe(path), report.to_dict()["claims"]):
        text = "\n".join(lines)
        assert NAME in text and digest in text and "has not proven them" in text
    assert "claimed, not proven" in repr(report)


@pytest.mark.parametrize("kind", ["ForeignGNMax", "ExponentialMax"])
def test_what_is_charged_by_a_claimed_law_is_what_another_program_finds(kind: str, tmp_path: Path) -> None:
    """The second verifier's ε, and the words that it rests on a claim."""
    identity = part_identity(f"foreign_mechanisms:{kind}", "aggregator")
    made = own_mechanism(
        getattr(foreign_mechanisms, kind)(3.0), classes=3, num_teachers=10, identity=identity
    )
    path = write(tmp_path / "ledger.sqlite", ledger_terms(made))
    report = verify(path, aggregators=(identity.name,))
    assert report.claims and report.guaranteed == guaranteed_epsilon(ledger_terms(made))
    assert "rows, chain whole" in verify_independent.verify(tmp_path)[0]
    lines = [each.line() for each in accountants(ledger_terms(made))]
    assert lines and all("if the mechanism keeps what it claims" in line for line in lines)
    assert "has not proven them" in "\n".join(report.lines())
    terms = ledger_terms(made).to_dict()
    lower = 0.6 * min(each.epsilon for each in accountants(ledger_terms(made)))
    own, near = verify_independent._own(terms, verify_independent._caps(terms), lower)
    with pytest.raises(verify_independent.FoundError, match="by our own reckoning"):
        verify_independent._hold("the terms", lower, own, near, terms)


def test_another_source_or_a_lower_curve_is_refused(tmp_path: Path) -> None:
    other = write(tmp_path / "other.sqlite", ledger_terms(mechanism(digest="0" * 64)), batches=1)
    with pytest.raises(IntegrityError, match=f"in the study version .* with digest {'0' * 64}"):
        verify(other, aggregators=(NAME,))
    honest = mechanism()
    cheap = replace(honest, claim=replace(honest.claim, rdp=tuple(x / 2 for x in honest.claim.rdp)))
    with Ledger.create(tmp_path / "cheap.sqlite", ledger_terms(cheap)):
        pass
    assert verify(tmp_path / "cheap.sqlite").unchecked
    with pytest.raises(IntegrityError, match="claims a larger curve than the one that was charged"):
        verify(tmp_path / "cheap.sqlite", aggregators=(NAME,))


def test_rows_with_another_curve_than_the_terms_are_refused(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.sqlite", ledger_terms(mechanism())) as ledger:
        made = mechanism(20.0).release([[7, 2, 1]], NOISE)
        with pytest.raises(IntegrityError, match="the ledger's terms allow no OwnMechanism"):
            ledger.charge(
                made.event, batch_digest="0" * 64, index=[0], answered=made.answered, label=made.label
            )


def test_caps_and_a_budget_hold_as_for_ours(tmp_path: Path) -> None:
    guaranteed = guaranteed_epsilon(ledger_terms(mechanism())) or 0.0
    assert 0 < guaranteed < (guaranteed_epsilon(ledger_terms(mechanism(5.0))) or 0.0)
    terms = ledger_terms(mechanism(), epsilon=guaranteed / 4, most_asked=None, most_answered=None)
    fits = terms.budget.affordable(mechanism(), queries=10**6) if terms.budget else 0
    assert 0 < fits < 40
    with Ledger.create(tmp_path / "ledger.sqlite", terms) as ledger:
        made = mechanism().release(np.tile([7, 2, 1], (fits + 1, 1)), NOISE)
        with pytest.raises(BudgetError):
            ledger.charge(
                made.event,
                batch_digest="0" * 64,
                index=np.arange(fits + 1),
                answered=made.answered,
                label=made.label,
            )
        assert not ledger.entries()


@pytest.fixture
def copied(path: Path, tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as held, closing(sqlite3.connect(copy)) as new:
        held.backup(new)
    yield copy


def test_a_row_that_claims_less_breaks_the_chain(copied: Path) -> None:
    with closing(sqlite3.connect(copied)) as database:
        names = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in names:
            database.execute(f"DROP TRIGGER {name}")
        [(text,)] = database.execute("SELECT parameters FROM entries WHERE seq = 1").fetchall()
        held = json.loads(text)
        held["claim"]["rdp"] = [value / 100 for value in held["claim"]["rdp"]]
        database.execute("UPDATE entries SET parameters = ? WHERE seq = 1", (json.dumps(held),))
        for _, sql in names:
            database.execute(sql)
        database.commit()
    with pytest.raises(IntegrityError, match="row 1 was changed"):
        verify(copied)


@pytest.mark.parametrize("named", [True, False])
def test_the_ledger_says_whose_word_features_are(tmp_path: Path, named: bool) -> None:
    sums = ClassSums(num_classes=3, dimension=20, squared_norm=1024, sigma=200.0)
    word = Assumption(kind=FEATURE_MAP, part=part_identity("own_parts:brightness", "feature map"))
    terms = ledger_terms(sums, most_answered=40, assumed=(word,) if named else ())
    with Ledger.create(tmp_path / "ledger.sqlite", terms):
        pass
    report = verify(tmp_path / "ledger.sqlite")
    told = f"NOT PROVEN: every ε rests on the word of {word.part.text} that an input's features follow from"
    for lines in (report.lines(), describe(tmp_path / "ledger.sqlite")):
        assert any(line.startswith(told) for line in lines) is named
        assert not any("is charged as its mechanism claims" in line for line in lines)
    assert [each["name"] for each in report.to_dict()["claimed_by"]] == ["own_parts:brightness"] * named
    assert ("claimed, not proven" in repr(report)) is named
    assert not report.unchecked  # nothing of it is left to compute: it is a word, and no curve
