"""Pages: the room's own templates and style, and nothing of a value is markup."""

from __future__ import annotations

import pytest
from jinja2 import TemplateError

from pate_fed.report.page import render_page


def test_a_value_that_is_missing_is_an_error_and_not_a_gap() -> None:
    with pytest.raises(TemplateError):
        render_page("report.html.jinja", {})
