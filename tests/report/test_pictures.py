"""Charts and images: scales, ticks, PNG bytes, counts behind the figures."""

from __future__ import annotations

import math

import matplotlib.image as reader
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.errors import InputError
from pate_fed.report.png import contact_sheet, encode_png
from pate_fed.report.result import Samples, count_confusion, count_top_votes
from pate_fed.report.svg import Canvas, Scale, compact, nice_ticks


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


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_is_read_back_the_same(channels: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    image = np.random.default_rng(1).integers(0, 256, (5, 9, channels), dtype=np.uint8)
    path = tmp_path_factory.mktemp("png") / "image.png"
    path.write_bytes(encode_png(image))
    read = (reader.imread(path) * 255).round().astype(np.uint8)
    np.testing.assert_array_equal(read.reshape(5, 9, -1)[..., :channels], image)


def test_a_contact_sheet_keeps_every_image() -> None:
    images = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4, 1)
    sheet = contact_sheet(images, columns=4, gap=1)
    assert sheet.shape == (11, 21, 1)
    np.testing.assert_array_equal(sheet[6:10, 6:10], images[5])


def test_samples_are_images_and_few() -> None:
    assert len(Samples(images=np.zeros((100, 2, 2, 3), np.uint8)).images) == 64
    for wrong in (np.zeros((4, 2, 2)), np.zeros((4, 2, 2, 2), np.uint8), np.zeros((4, 2, 2, 1))):
        with pytest.raises(InputError, match="uint8"):
            Samples(images=wrong)


def test_confusion_counts_answered_queries_only() -> None:
    truth, label = np.array([0, 0, 1, 2, 2]), np.array([0, 1, -1, 2, 0])
    assert count_confusion(truth, label, num_classes=3) == ((1, 1, 0), (0, 0, 0), (1, 0, 1))
    assert count_confusion(truth[:0], label[:0], num_classes=2) == ((0, 0), (0, 0))
    with pytest.raises(InputError, match="from 0 to 1"):
        count_confusion(truth, label, num_classes=2)
    with pytest.raises(InputError, match="one each"):
        count_confusion(truth, label[:2], num_classes=3)


@pytest.mark.parametrize("teachers", [1, 3, 50, 250, 6250])
def test_top_votes_count_every_query_once(teachers: int) -> None:
    rng = np.random.default_rng(teachers)
    totals = rng.multinomial(teachers, [0.5, 0.3, 0.2], size=200)
    totals[0] = (teachers, 0, 0)
    answered = rng.random(200) < 0.4
    found = count_top_votes(totals, answered, num_teachers=teachers)
    edges = found["top_edges"]
    assert len(edges) == len(found["top_answered"]) + 1 == len(found["top_refused"]) + 1 <= 51
    assert edges[0] == 0 and edges[-1] > teachers
    assert (sum(found["top_answered"]), sum(found["top_refused"])) == (answered.sum(), (~answered).sum())
    top = totals.max(axis=1)
    first = int(((top >= edges[0]) & (top < edges[1]) & answered).sum())
    assert found["top_answered"][0] == first
    assert math.isclose(edges[1] - edges[0], edges[-1] - edges[-2])


def test_top_votes_need_one_bit_a_query() -> None:
    with pytest.raises(InputError, match="one bit"):
        count_top_votes(np.zeros((3, 2), np.int64), np.zeros(2, bool), num_teachers=5)
