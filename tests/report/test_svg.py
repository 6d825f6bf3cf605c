"""Charts: scales, ticks, escaped text."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.report.svg import Canvas, Chart, Scale, compact, nice_ticks


@given(st.floats(min_value=-1e3, max_value=1e3), st.floats(min_value=1e-3, max_value=1e9))
def test_ticks_cover_the_range_evenly(low: float, width: float) -> None:
    high = low + width
    ticks = nice_ticks(low, high)
    slack = 1e-6 * width + 1e-6 * abs(low)
    assert ticks[0] <= low + slack and ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 9
    steps = np.diff(ticks)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-3)


@pytest.mark.parametrize("high", [1e-300, 1e-14, 1e14, 1e300])
def test_ticks_of_any_size_differ(high: float) -> None:
    ticks = nice_ticks(0, high)
    assert len(set(ticks)) == len(ticks) and ticks[-1] >= high * (1 - 1e-9)


def test_an_empty_range_has_ticks_and_a_place() -> None:
    assert nice_ticks(0, 0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Scale(3, 3, 10, 20)(3) == 10
    assert Scale(0, 2, 10, 20)(1) == 15


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.25, "0.25"), (1000, "1,000"), (12.5, "12.5")])
def test_axis_numbers_are_short(value: float, text: str) -> None:
    assert compact(value) == text


def test_svg_text_is_escaped() -> None:
    canvas = Canvas(10)
    canvas.text(0, 0, "<b>&")
    canvas.rect(0, 0, 1, 1, "fill", tip='"><x>')
    text = canvas.svg('a "quote"')
    assert "<b>" not in text and "<x>" not in text
    assert 'aria-label="a &quot;quote&quot;"' in text


@pytest.mark.parametrize("value", [0, 3, 50, 99, 100])
def test_a_marks_name_stands_above_the_plot_and_within_the_picture(value: float) -> None:
    chart = Chart([0, 50, 100], [0, 1], x_label="x", y_label="y")
    chart.mark_x(value, "trained again")
    (found,) = re.findall(r'x="([0-9.]+)" y="([0-9.]+)"[^>]*>trained again<', chart.svg("alt"))
    half = 3.6 * len("trained again")
    assert float(found[1]) < chart.top and half <= float(found[0]) <= chart.width - half


def test_pictures_have_no_inline_styles() -> None:
    """A page whose policy forbids them shows them all the same."""
    canvas = Canvas(10)
    canvas.rect(0, 0, 1, 1, "fill", opacity=0.25)
    assert 'opacity="0.25"' in canvas.svg("alt") and "style=" not in canvas.svg("alt")
