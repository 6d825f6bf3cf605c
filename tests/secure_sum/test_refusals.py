"""The fixed list of reasons: what the other side is told is never the detail."""

from __future__ import annotations

from pate_fed.secure_sum import RefusedError, SumRefusal


def test_a_detail_is_in_the_text_for_ones_own_log_and_the_reason_is_apart() -> None:
    error = RefusedError(SumRefusal.PROOF, "about another batch")
    assert str(error) == f"{SumRefusal.PROOF.value} (about another batch)"
    assert error.reason is SumRefusal.PROOF and str(RefusedError(SumRefusal.DEALT)) == SumRefusal.DEALT.value


def test_no_two_reasons_have_one_sentence() -> None:
    assert len({reason.value for reason in SumRefusal}) == len(SumRefusal.__members__)
