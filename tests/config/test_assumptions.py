"""On whose word an ε rests: every kind has its sentence, and all of a study's are named together."""

from __future__ import annotations

import pytest

from pate_fed.config.assumptions import FEATURE_MAP, MECHANISM, TEACHER, Assumption, Assumptions
from pate_fed.config.parts import PartIdentity
from pate_fed.errors import InputError

PART = PartIdentity(name="theirs:make", version="1.2", digest="cd" * 32)


@pytest.mark.parametrize("kind", [MECHANISM, FEATURE_MAP, TEACHER])
def test_each_kind_says_whose_word_it_is_and_that_nothing_is_proven(kind: str) -> None:
    warning = Assumption(kind=kind, part=PART).warning
    assert "theirs:make 1.2" in warning and "cd" * 32 in warning and "not proven" in warning


def test_all_of_a_study_s_are_told_together() -> None:
    other = PartIdentity(name="others:map", version=None, digest="ef" * 32)
    both = Assumptions((Assumption(kind=MECHANISM, part=PART), Assumption(kind=FEATURE_MAP, part=other)))
    assert both and not Assumptions()
    assert both.short == "claimed by theirs:make and others:map, not proven"
    assert both.warning == "; ".join(one.warning for one in both.each)
    assert [one.part for one in both.beside_records] == [other]
    assert both.sources[1] == {
        "kind": FEATURE_MAP,
        "name": "others:map",
        "version": None,
        "digest": "ef" * 32,
    }


def test_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="kind"):
        Assumption(kind="student", part=PART)
