"""A liar in a masked sum is named, nobody honest is, and the others come to their sum or to the quorum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from liars import HONEST, LiarStudy, Lie, Outcome, bent, votes_of

from pate_fed.errors import QuorumError
from pate_fed.secure_sum.messages import (
    BatchOpening,
    BatchShares,
    Complaint,
    MaskedVector,
    MaskRequest,
    ShareEvidence,
    SurvivorNotice,
    UnmaskRequest,
    UnmaskShares,
)
from pate_fed.structure import entries

STUDIES = {"12": (12, 8), "5": (5, 4), "4": (4, 4), "ring": (12, 8)}
# A step that nobody can hold against what it should be: what it is said to be has its own rows below.
_VECTOR = "sum.masked.vector"


@pytest.fixture(scope="module", params=list(STUDIES))
def study(request: pytest.FixtureRequest) -> Iterator[LiarStudy]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "ring":  # as if they were many: seven hold shares, five open a secret
            for module in ("graph", "coordinator"):
                patch.setattr(f"pate_fed.secure_sum.{module}.shape", _ring_of_twelve)
        yield _honest(request.param)


def _ring_of_twelve(count: int, threshold: int, _: int) -> tuple[int, int]:
    return (7, 5) if count == 12 else (count, threshold)  # tests of fewer run before the patch is gone


def _honest(which: str) -> LiarStudy:
    made = LiarStudy(*STUDIES[which])
    for kind in HONEST:  # what another study's hospital said at each step

        def keep(message: Any, kind: type = kind) -> Any:
            made.replayed[kind] = message
            return message

        made.play(0, Lie("", kind, keep))
    return made


def _told(study: LiarStudy, lies: Any, stride: int) -> Counter[str]:
    """Tell every `stride`-th lie, by turns as each hospital; how each ended, counted."""
    ended = Counter[str]()
    for number, lie in enumerate(lies):
        if number % stride:
            continue
        liar = (number // stride) % study.parties
        outcome = study.play(liar, lie)
        ended[_judge(study, liar, lie, outcome)] += 1
    return ended


def _judge(study: LiarStudy, liar: int, lie: Lie, outcome: Outcome) -> str:
    name, told = study.names[liar], (lie.what, outcome)
    assert outcome.lied, told
    assert set(outcome.named) <= {name}, told  # no honest one, whatever happens
    assert max(outcome.revealed.values(), default=0) <= 1, told
    if outcome.totals is not None:
        beside = outcome.totals - study.honest_sum(liar)
        with_liar = outcome.voters == study.parties
        assert (beside.sum() > 0) == with_liar or lie.what.startswith(_VECTOR), told
        assert with_liar or not beside.any(), told
        return "named, and summed" if outcome.named else "summed"
    text = str(outcome.error)
    assert not any(other in text for other in study.names if other != name), told
    if isinstance(outcome.error, QuorumError):
        assert study.parties - 1 < study.quorum, told
        assert name in outcome.named or lie.silent, told
        revealing = lie.kind is UnmaskShares or "silence" in lie.what or "at sum" in lie.what
        # What it committed to for itself alone is only held against its own share.
        assert revealing or "revealed their shares" in text or not outcome.charged, told
        return "named, below the quorum" if outcome.named else "silent, below the quorum"
    # After a share is revealed nothing begins again: it ends with the name of who dealt no one secret.
    if name in text:
        assert lie.kind is BatchShares and lie.what.split(".")[2].startswith(("commitment", "seeds")), told
        return "named, and the batch is charged"
    assert lie.what.startswith(_VECTOR), told  # masked numbers look alike: the sum alone tells, and of nobody
    return "none of honest votes"


@pytest.mark.parametrize("stride", [43, pytest.param(1, marks=pytest.mark.slow)])
def test_every_field_of_every_message_may_lie(study: LiarStudy, stride: int) -> None:
    ended = _told(study, study.field_lies(), stride)
    print(study.parties, dict(ended), sum(ended.values()))
    assert sum(ended.values()) * stride > 600
    assert ended["none of honest votes"] + ended["named, and the batch is charged"] < sum(ended.values()) // 8


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_shares_may_be_wrong_for_any_two(study: LiarStudy, stride: int) -> None:
    ended = _told(study, study.part_lies(), stride)
    print(study.parties, dict(ended), sum(ended.values()))
    expected = "named, and summed" if study.parties > study.quorum else "named, below the quorum"
    assert set(ended) <= {expected, "summed"}


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_replayed_refused_and_unsaid_messages(study: LiarStudy, stride: int) -> None:
    ended = _told(study, study.other_lies(), stride)
    print(study.parties, dict(ended), sum(ended.values()))


REQUESTS = (BatchOpening, MaskRequest, SurvivorNotice, UnmaskRequest, ShareEvidence)


@pytest.mark.parametrize("stride", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_a_coordinator_that_lies_names_nobody_and_gets_one_right_sum_or_none(
    study: LiarStudy, stride: int
) -> None:
    ended, number = Counter[str](), -1
    for kind in REQUESTS:
        for entry in entries(kind):
            for how in range(6):
                for victims in ({0}, set(range(1, study.parties)), set(range(study.parties))):
                    number += 1
                    if number % stride:
                        continue
                    outcome = study.play(0, None, bend=_bending(study, kind, entry.name, how, victims))
                    named = [why for why in outcome.named.values() if "sealed" in why or "accused" in why]
                    assert not named, (kind, entry.name, how, victims, outcome)
                    assert max(outcome.revealed.values(), default=0) <= 1
                    if outcome.totals is not None:
                        assert (outcome.totals.sum(axis=1) == outcome.voters).all()
                        if outcome.voters == study.parties:
                            np.testing.assert_array_equal(outcome.totals, study.honest_sum(0) + votes_of(0))
                    ended["summed" if outcome.totals is not None else type(outcome.error).__name__] += 1
    print(study.parties, dict(ended))
    assert sum(ended.values()) * stride > 700


def _bending(study: LiarStudy, kind: type, name: str, how: int, victims: set[int]) -> Any:
    def bend(node: int, step: Any) -> Any:
        if not isinstance(step, kind) or node not in victims:
            return step
        changed = replace(step, **{name: bent(getattr(step, name), how, study.parties)})
        return changed.signed(study.coordinator)

    return bend


def test_an_honest_batch_is_as_it_was(study: LiarStudy) -> None:
    outcome = study.play(0, None)
    assert outcome.totals is not None and not outcome.named
    votes = study.honest_sum(0) + votes_of(0)
    np.testing.assert_array_equal(outcome.totals, votes)
    assert outcome.voters == study.parties


def test_masked_numbers_of_ones_own_making_name_nobody(study: LiarStudy) -> None:
    def change(message: MaskedVector) -> MaskedVector:
        return replace(message, vector=message.vector + np.uint16(7))

    outcome = study.play(1, Lie(f"{_VECTOR} plus 7", MaskedVector, change))
    assert "none of honest votes" in str(outcome.error) and not outcome.named and outcome.charged


@pytest.mark.parametrize("accuses", [False, True])
def test_the_coordinator_may_die_at_any_answer_and_comes_to_the_same_name_and_sum(
    accuses: bool, tmp_path: Path
) -> None:
    study, lie = LiarStudy(5, 4), next(LiarStudy(5, 4).part_lies())
    if accuses:
        lie = Lie("a doubt about right shares", Complaint, lambda reply: reply, accuses=True)
    whole = study.play(1, lie, private=tmp_path / "whole")
    assert whole.answers == 2 * 5 + 1 + 4 * 4  # the attempt that was given up, and its evidence; the next
    for dies_at in range(1 + accuses, whole.answers, 2):  # by turns
        outcome = study.play(1, lie, private=tmp_path / str(dies_at), dies_at=dies_at)
        assert outcome.error is None and outcome.voters == 4, (dies_at, outcome)
        np.testing.assert_array_equal(outcome.totals, study.honest_sum(1))
        assert set(outcome.named) == {"p01"} and set(outcome.revealed.values()) == {1}
