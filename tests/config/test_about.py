"""What people read of a study before they accept it: one printable line each."""

from __future__ import annotations

import pytest

from pate_fed.config.about import About
from pate_fed.errors import InputError


def test_nothing_is_stated_unless_somebody_does() -> None:
    assert About() == About(requester="", purpose="", legal_basis="", contact="", retention="")
    assert About(purpose="Früherkennung").purpose == "Früherkennung"


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2J", "x" * 501])
def test_a_text_that_is_no_line_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match=r"contact .*500"):
        About(contact=text)
