"""The public encoder: its histograms and their slopes, its directions, its file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as searched
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from pate_fed.errors import IntegrityError
from pate_fed.learning import TeacherSettings
from pate_fed.learning.networks import encoder as module
from pate_fed.learning.networks.encoder import (
    Encoder,
    encoder_for,
    fit_encoder,
    histogram_size,
    oriented_histograms,
)

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (8, 8, 1), (11, 14, 3)])
def test_histograms_have_the_size_they_say(shape: tuple[int, int, int]) -> None:
    rows, columns, channels = shape
    for cell in (3, 5):
        found = oriented_histograms(torch.rand(3, channels, rows, columns), (cell,))[0]
        assert found.shape == (3, histogram_size(shape, cell))
        assert bool((found >= 0).all()) and float(found.max()) <= 0.3 + 1e-6


def test_histograms_see_the_angle_of_an_edge_and_not_its_brightness() -> None:
    ramp = torch.linspace(0.1, 0.9, 12).square()  # of its square root the slope is the same everywhere
    across, down = ramp.expand(12, 12)[None, None], ramp[:, None].expand(12, 12)[None, None]
    first, second = (
        oriented_histograms(each, (3,))[0].view(4, 6, 3, 3).mean(dim=(0, 2, 3)) for each in (across, down)
    )
    assert int(first.argmax()) == 0  # the gradient points along 0°
    assert int(second.argmax()) == 3  # of six orientations, 30° apart
    strong, weak = (oriented_histograms(across * share, (3,))[0] for share in (1.0, 0.9))
    assert torch.allclose(strong, weak, atol=0.05)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 14)])
def test_small_images_and_cells_are_what_pooling_layers_give(shape: tuple[int, int, int]) -> None:
    channels, rows, columns = shape
    x = torch.rand(2, rows, columns, channels, dtype=torch.float64).permute(0, 3, 1, 2)  # as images lie
    pooled = F.avg_pool2d(F.avg_pool2d(x, 3, stride=1, padding=1), 2).flatten(1)
    assert torch.allclose(module.smoothed_pixels(x), pooled)
    for cell in (3, 5):
        whole = x[:, :, : rows // cell * cell, : columns // cell * cell]
        assert torch.allclose(module._cell_sums(whole, cell), F.avg_pool2d(whole, cell) * cell**2)


def test_each_pixel_counts_for_its_two_nearest_orientations_and_wholly() -> None:
    grey = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(1))
    grey[1, :, 3:] = 0.5  # flat
    shares = torch.stack(module._orientation_shares(grey))  # (orientations, n, 1, H, W)
    wide = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    across, down = wide[:, :, 1:-1, 2:] - wide[:, :, 1:-1, :-2], wide[:, :, 2:, 1:-1] - wide[:, :, :-2, 1:-1]
    assert torch.allclose(shares.sum(dim=0), torch.hypot(across, down), atol=1e-6)
    assert int((shares > 0).sum(dim=0).max()) == 2
    assert not shares[:, 1, :, 5:].any()


def test_the_slope_of_histograms_is_that_of_their_values() -> None:
    stream = torch.Generator().manual_seed(1)
    x = (0.2 + 0.6 * torch.rand(1, 1, 9, 9, generator=stream, dtype=torch.float64)).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda image: oriented_histograms(image, (3,))[0], (x,))


@pytest.mark.parametrize("image", ["black", "white", "black corner", "almost black"])
def test_flat_and_black_places_have_a_finite_slope(image: str) -> None:
    x = {
        "black": torch.zeros(1, 1, 12, 12),
        "white": torch.ones(1, 1, 12, 12),
        "black corner": torch.rand(1, 1, 12, 12) * (torch.arange(12) > 5),
        "almost black": torch.rand(1, 1, 12, 12) * 1e-30,
    }[image].requires_grad_(True)
    oriented_histograms(x, (3,))[0].sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and bool(torch.isfinite(x.grad * x.detach()).all())  # as behind a sigmoid
    if image in ("black", "white"):
        assert not x.grad.any()


@pytest.mark.parametrize("cell", [3, 5])
def test_the_slope_is_finite_at_pixels_of_every_size(cell: int) -> None:
    """Generators end in a sigmoid, which comes as near to black as a float can: there 1/steepness is none."""
    stream = torch.Generator().manual_seed(1)
    size = 10.0 ** (-48 * torch.rand(200, 1, 1, 1, generator=stream, dtype=torch.float64))
    spread = torch.rand(200, 1, 12, 12, generator=stream, dtype=torch.float64)
    x = (size * spread).float().requires_grad_(True)
    oriented_histograms(x, (cell,))[0].sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and bool(torch.isfinite(x.grad * x.detach()).all())


def test_an_encoder_travels_and_is_held_to_its_digest(stripes: MakeStripes) -> None:
    images, _ = stripes(60)
    encoder = fit_encoder(images)
    data = encoder.to_bytes()
    again = Encoder.from_bytes(data, digest=encoder.digest)
    assert again.digest == encoder.digest == fit_encoder(images).digest
    assert np.array_equal(again.transform(images), encoder.transform(images))
    other = fit_encoder(images[:50])
    assert other.digest != encoder.digest
    with pytest.raises(IntegrityError, match=encoder.digest):
        Encoder.from_bytes(data, digest=other.digest)
    for damaged in (data[: len(data) // 2], b"nothing"):
        with pytest.raises(IntegrityError, match="damaged"):
            Encoder.from_bytes(damaged)


def test_a_pools_encoder_is_fitted_once(stripes: MakeStripes) -> None:
    images, _ = stripes(30)
    settings = TeacherSettings(name="encoder-head")
    assert encoder_for(TeacherSettings(name="small-cnn"), images) is None
    first = encoder_for(settings, images)
    assert first is not None and first.digest == fit_encoder(images).digest
    assert encoder_for(settings, images.copy()) is first
    assert encoder_for(settings, images[:20]) is not first
    assert fit_encoder(images, dimensions=3).basis.shape[1] == 3


@searched(deadline=None, max_examples=150, derandomize=True)
@given(data=st.data())
def test_a_changed_file_is_another_encoder_or_refused(data: st.DataObject) -> None:
    """Nothing else is raised, whatever a coordinator sends; the digest tells another encoder."""
    images = np.arange(12 * 64, dtype=np.uint8).reshape(12, 8, 8, 1)
    whole = bytearray(fit_encoder(images, dimensions=2).to_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, header + 40))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
    digest = fit_encoder(images, dimensions=2).digest
    try:
        found = Encoder.from_bytes(bytes(whole[:cut]), digest=digest)
    except IntegrityError:
        return
    assert found.digest == digest


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("image_shape", np.array([np.inf, 8, 1])),
        ("image_shape", np.array(8)),
        ("mean", np.zeros(3, dtype=np.float16)),
        ("basis", np.zeros((2, 2), dtype=np.float64)),
    ],
)
def test_arrays_that_are_no_encoder_are_refused(name: str, array: NDArray[Any]) -> None:
    arrays = load_arrays(fit_encoder(np.arange(12 * 64, dtype=np.uint8).reshape(12, 8, 8, 1)).to_bytes())
    with pytest.raises(IntegrityError):
        Encoder.from_bytes(save_arrays({**arrays, name: array}))


def test_features_have_mean_squared_length_one(stripes: MakeStripes) -> None:
    images, _ = stripes(300)
    features = fit_encoder(images).transform(images)
    assert np.mean(np.sum(features**2, axis=1)) == pytest.approx(1, rel=1e-4)
    assert np.allclose(features.mean(axis=0), 0, atol=1e-4)


def test_leading_directions_are_the_plain_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(30, 30, generator=generator, dtype=torch.float64)).Q
    rows = torch.randn(400, 30, generator=generator, dtype=torch.float64) * 0.7 ** torch.arange(30) @ turn
    rows = rows - rows.mean(dim=0)
    variance, vectors = torch.linalg.eigh(rows.T @ rows)
    expected = vectors.flip(1)[:, :6] * (variance.flip(0)[:6] / variance[-1]) ** -0.1
    found = module.leading_directions(rows, 6)
    assert torch.allclose(found.abs(), expected.abs(), atol=1e-6)
    assert torch.equal(module.leading_directions(rows[:, :4], 6)[:, 4:], torch.zeros(4, 2, dtype=rows.dtype))


def test_large_images_are_made_smaller_first() -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 96, 64, 1), dtype=np.uint8)
    small = images.reshape(12, 48, 2, 32, 2, 1).mean(axis=(2, 4))
    assert module.reduction((96, 64, 1)) == 2 and module.reduction((28, 28, 1)) == 1
    assert len(fit_encoder(images).mean) == sum(module.block_sizes((48, 32, 1)))
    found = fit_encoder(images).transform(images)
    near = fit_encoder(small.round().astype(np.uint8)).transform(small.round().astype(np.uint8))
    assert np.abs(found).mean() == pytest.approx(np.abs(near).mean(), rel=0.05)
