"""Reasons for not answering: one sentence each, and which of them are a policy's."""

from __future__ import annotations

from pate_fed.protocol.messages import Refusal


def test_every_reason_is_told_in_one_sentence_that_says_it_is_a_refusal() -> None:
    sentences = [reason.sentence for reason in Refusal]
    assert len(set(sentences)) == len(Refusal)
    assert all(text.startswith("refused") and text.isprintable() for text in sentences)


def test_a_policys_refusal_is_told_from_the_terms_own() -> None:
    assert Refusal.POLICY_DAY.is_policy and Refusal.POLICY.is_policy
    assert not Refusal.LEFT.is_policy and not Refusal.PLAIN.is_policy
    assert Refusal.POLICY_POOL.sentence.count("refused") == 1
