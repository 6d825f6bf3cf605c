"""Words on private labels: of terms and of runs, wherever the labels lie."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import make_label_terms
from saved_runs import LABELS


@pytest.mark.parametrize(
    ("seen", "who"),
    [
        ("labels", ["Whoever ran it"]),
        ("noisy-labels", ["The coordinator", "The other hospitals"]),
        ("noisy-counts", ["The coordinator", "The other hospitals"]),
    ],
)
def test_nobody_else_is_there_where_all_labels_lie_in_one_place(seen: str, who: list[str]) -> None:
    words = replace(LABELS, coordinator=seen, num_clients=4).words
    public, *others = words.against("noise", "Labels")
    assert public.hidden == "The records' own labels" and [each.who for each in others] == who
    assert ("masks" in others[-1].by) == (seen == "noisy-counts")
    assert (words.quorum == "labels in one place") == (seen == "labels")


def test_terms_and_a_run_of_them_are_named_alike() -> None:
    terms, run = make_label_terms().words, LABELS.words
    assert terms.kind == run.kind == "private labels" and terms.quorum == "quorum 2"
    assert terms.at_once == 1 and terms.labels is None
    assert terms.mechanism == "randres" and run.mechanism == "alibi"
    assert terms.question(60) == "labels of 60 inputs"
    assert replace(LABELS, coordinator="noisy-counts").words.question(6) == "counts of 6 clusters"
