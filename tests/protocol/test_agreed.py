"""Terms of any kind have one text and one digest, and what is no such text is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from builders import make_label_terms, make_noisy_terms, make_table_terms, make_terms

from pate_fed.errors import IntegrityError
from pate_fed.kinds import terms
from pate_fed.kinds.terms import Terms
from pate_fed.protocol import messages
from pate_fed.protocol.agreed import Agreed, digest_of
from pate_fed.secure_sum import messages as sum_messages

NOISY, TABLE = make_noisy_terms(), make_table_terms()


@pytest.mark.parametrize("terms", [NOISY, TABLE, make_terms()])
def test_terms_survive_their_text(terms: Terms) -> None:
    again = Terms.from_json(terms.to_json())
    assert again == terms
    assert again.digest == terms.digest


def test_terms_are_read_once_and_what_is_refused_is_refused_again() -> None:
    """One process plays many parties, which get the same text with every message."""
    text = NOISY.to_json()
    assert Terms.from_json(text) is Terms.from_json(text)
    for _ in range(2):
        with pytest.raises(IntegrityError):
            Terms.from_json(text.replace('"study":', '"studies":'))


@dataclass(frozen=True, slots=True)
class _Figure(Agreed):
    value: float


def test_equal_terms_of_two_texts_have_two_digests() -> None:
    plain, negative = _Figure(0.0), _Figure(-0.0)
    assert plain == negative
    assert plain.digest != negative.digest
    assert plain.digest == _Figure(0.0).digest


def test_whole_numbers_that_are_figures_have_one_text() -> None:
    assert make_terms(sigma2=5).digest == make_terms(sigma2=5.0).digest


@pytest.mark.parametrize("text", ["[" * 100_000, '"x"', "3", '{"study": {"study": 3}}', "\ud800"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(IntegrityError):
        Terms.from_json(text)


def test_a_section_of_another_kind_is_refused() -> None:
    """Each kind has its own fields, so that neither can be taken for the other."""
    labels, votes = (json.loads(terms.to_json()) for terms in (make_label_terms(), make_terms()))
    for one, other in ((labels, votes), (votes, labels)):
        with pytest.raises(IntegrityError):
            Terms.from_json(json.dumps({**one, "asks": {**other["asks"], "kind": one["asks"]["kind"]}}))


def test_a_text_has_one_order_and_other_orders_are_read_as_the_same_terms() -> None:
    text = make_label_terms().to_json()
    turned = json.dumps(dict(reversed(json.loads(text).items())), indent=1)
    assert turned != text
    assert Terms.from_json(turned).to_json() == text


def test_no_two_lists_of_parts_have_one_digest() -> None:
    lists = [(), (b"",), (b"", b""), (b"ab",), (b"a", b"b"), (b"", b"ab"), (b"ab", b"")]
    assert len({digest_of(*parts) for parts in lists}) == len(lists)


@pytest.mark.parametrize(
    ("module", "declared", "instead"),
    [
        (messages, "index: NDArray[np.int64]", "index: list[int]"),
        (sum_messages, "batch: int", "batch: list[int]"),
        (terms, "num_classes: int", "num_classes: list[int]"),
        (terms, '"class-sums": SumTerms', '"class-sums": make_dataclass("Bad", [("of", list[int])])'),
    ],
)
def test_a_field_that_no_reader_knows_is_an_error_at_import(
    module: ModuleType, declared: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no refusal by every hospital: in what is sent, and in what is agreed to."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert declared in source
    text = source.replace(declared, instead).replace("import dataclass,", "import make_dataclass, dataclass,")
    planted = ModuleType("planted")
    monkeypatch.setitem(sys.modules, planted.__name__, planted)
    with pytest.raises(TypeError, match="which no reader of values knows"):
        exec(compile(text, module.__file__, "exec"), vars(planted))
