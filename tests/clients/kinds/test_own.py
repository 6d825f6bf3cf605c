"""A kind of one's own at a hospital: nothing of it runs unlisted, and its answers keep to the terms."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import BINS, ExactOwn, Own
from own_kind import Median

from clients.kinds.own import OwnSide
from clients.policy import Policy
from pate_fed.kinds.own import OwnTerms
from pate_fed.secure_sum import CoordinatorSum, Identity

NAME = "own_kind:Median"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts of these hospitals alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


@pytest.fixture
def own(tmp_path: Path) -> Own:
    return Own(tmp_path)


def _code(reply: Any) -> str:
    return str(getattr(reply, "code", f"no refusal: {type(reply).__name__}"))


def test_a_policy_that_does_not_list_it_refuses_before_any_of_it_runs(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.close()
    question = own.question()
    opening = own.open(question).opening
    for policy in ("", 'kinds = ["other:Kind"]', f'aggregators = ["{NAME}"]\nteachers = ["{NAME}"]'):
        monkeypatch.setattr(own, "permits", "")
        own.set_policy(0, policy)
        with monkeypatch.context() as patch:
            for name in ("pate_fed.structure.parts._import", "pate_fed.kinds.own.OwnTerms.code"):
                patch.setattr(name, None)
            assert _code(own.agree()) == "POLICY_KIND"
            assert _code(own.send(0, question, opening)) == "POLICY_KIND"
    [sentence] = {
        each["sentence"] for each in own.log(0) if each.get("reason") == "POLICY_KIND" and "sentence" in each
    }
    assert f"the line kinds = ['{NAME}']" in sentence and "rests on the privacy curve" in sentence
    digest = own.terms.asks.parts[0][1].digest
    own.set_policy(0, f'kinds = ["{digest}"]')  # or the very source
    assert own.agree().enrolment


def test_a_policy_wants_its_noise_before_exact_answers_leave(tmp_path: Path) -> None:
    exact = ExactOwn(tmp_path)
    exact.permits = Own.permits
    exact.set_policy(0, "")
    assert _code(exact.agree()) == "POLICY_EXACT_SUMS"
    assert Policy(kinds=(NAME,), class_sums="exact", least_confirmed=0).objection(exact.terms) is None


def test_other_code_or_other_words_of_it_are_refused(own: Own) -> None:
    asks = OwnTerms.of(own.terms)
    part = replace(asks.claim.part, digest="0" * 64)
    less = tuple(value / 2 for value in asks.claim.rdp)
    for changed, code in (
        (replace(asks, claim=replace(asks.claim, part=part)), "PART"),
        (replace(asks, claim=replace(asks.claim, rdp=less)), "PART"),
        (replace(asks, questions=3), "TERMS"),
        (replace(asks, places=BINS), "TERMS"),
        (replace(asks, says="nothing much"), "TERMS"),
    ):
        assert _code(own.agree(terms=replace(own.terms, asks=changed))) == code
    assert not [*own.settings[0].state_dir.rglob("terms.json")]
    assert own.agree().enrolment


def test_no_more_questions_are_answered_than_were_agreed_to(own: Own) -> None:
    """Nor smaller ones, which would be more of them: each costs as much."""
    own.close()
    for batch, places in ((0, np.arange(BINS)), (1, np.arange(BINS) + 5 * BINS)):
        assert own.total(own.question(batch, places)).shape == (BINS, 1)
    third = own.question(2, np.arange(BINS) + 9 * BINS)
    assert _code(own.send(0, third, own.open(third).opening)) == "CAPS"
    few, beyond, twice = np.arange(BINS - 1), np.arange(BINS) + BINS * BINS + 1, np.repeat(np.arange(64), 2)
    for batch, places in enumerate((few, beyond, twice), 3):
        asked = own.question(batch, places)
        assert _code(own.send(0, asked, own.open(asked).opening)) == "MALFORMED"
    assert own.answers() == 2


def test_the_second_question_is_answered_as_exactly(own: Own) -> None:
    own.close()
    hospital, places = own.hospital(0), np.arange(BINS) + 64 * BINS
    counts = hospital._side(own.terms).answer(own.question(1, places))
    x = np.loadtxt(own.data(0), delimiter=",", skiprows=1, usecols=0)[
        ::2
    ]  # the first of each patient's two rows
    edges = [-np.inf, *np.linspace(63 / BINS, 64 / BINS, BINS - 1), np.inf]
    assert counts[:, 0].tolist() == [int(((low <= x) & (x < high)).sum()) for low, high in pairwise(edges)]


@pytest.mark.parametrize(
    ("method", "does"),
    [
        ("answer", lambda *_: np.zeros((BINS, 2), dtype=np.int64)),
        ("answer", lambda *_: np.zeros((BINS, 1))),
        ("answer", lambda *_: np.full((BINS, 1), 2**30, dtype=np.int64)),
        ("answer", lambda *_: [0] * BINS),
        ("answer", lambda *_: 1 // 0),
    ],
)
def test_an_answer_of_another_shape_or_a_fault_is_no_answer(
    method: str, does: Any, own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Median, method, does)
    assert _code(own.agree()) == "DATA"
    assert "kind 'own_kind:Median'" in json.dumps(own.log(0))


def test_noise_of_another_shape_leaves_nothing(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    own.close()
    side = own.hospital(0)._side(own.terms)
    assert isinstance(side, OwnSide)
    answer = side.answer(own.question())
    monkeypatch.setattr(Median, "noise", lambda *_: np.zeros(3, dtype=np.int64))
    with pytest.raises(Exception, match="noise gives no int64"):
        side.add_noise(answer, own.hospital(0)._site.noise(0))


def test_an_own_coordinator_is_followed_alone(own: Own) -> None:
    own.close()
    other = CoordinatorSum(Identity.generate(), study=own.terms.digest)
    assert _code(own.agree(enrol=other.enrol_request().to_bytes())) == "COORDINATOR"
