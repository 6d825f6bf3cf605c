"""The terms that an authority signs: read back whole, and nothing else."""

from __future__ import annotations

import pytest
from builders import make_label_terms

from pate_fed.errors import IntegrityError
from pate_fed.identity.terms import read_terms, signed_bytes
from pate_fed.kinds.terms import Terms


def test_terms_of_either_kind_are_read_back(terms: Terms) -> None:
    assert read_terms(terms.to_json()) == terms
    labels = make_label_terms()
    assert read_terms(labels.to_json()) == labels


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"study": "s"}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(IntegrityError):
        read_terms(text)


def test_a_signature_on_terms_is_one_on_nothing_else(terms: Terms) -> None:
    assert signed_bytes(terms.to_json()) == b"pate_fed/v1 terms of a study\n" + terms.to_json().encode()
