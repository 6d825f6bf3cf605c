"""What a hospital does for every kind: one file a kind, and nothing of code that is another one here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import THEIRS, make_sum_terms, make_terms, own_map_terms

from clients.kinds import side_of
from clients.log import HospitalLog
from pate_fed.errors import InputError
from pate_fed.kinds.terms import KINDS, Terms
from pate_fed.protocol.messages import Question

SITE: Any = None


@pytest.mark.parametrize("terms", [make_terms(), make_sum_terms()], ids=lambda terms: terms.asks.kind)
def test_every_kind_has_a_side_that_reads_its_own_terms(terms: Terms, tmp_path: Path) -> None:
    side = side_of(SITE, terms, HospitalLog(tmp_path))
    assert side.asks is terms.asks  # type: ignore[attr-defined]
    assert terms.asks.kind in KINDS
    side.check_parts()  # none is none of ours
    other = make_sum_terms() if terms.asks.kind == "votes" else make_terms()
    with pytest.raises(TypeError, match="kind"):
        _ = replace_terms(side, other).asks


def replace_terms(side: Any, terms: Terms) -> Any:
    """The same side under terms of another kind."""
    side.terms = terms
    return side


def test_code_that_is_not_here_is_no_part_of_an_answer(tmp_path: Path) -> None:
    side = side_of(SITE, own_map_terms(), HospitalLog(tmp_path))
    with pytest.raises(InputError, match=THEIRS.name.partition(":")[0]):
        side.check_parts()


def test_only_questions_about_the_pool_count_as_queries(tmp_path: Path) -> None:
    question = Question(terms_digest="", batch=0, index=np.arange(5), measured=2)
    log = HospitalLog(tmp_path)
    assert side_of(SITE, make_terms(), log).counted(question) == 3
    assert side_of(SITE, make_sum_terms(), log).counted(question) == 0
    assert replace(question, measured=0).digest != question.digest
