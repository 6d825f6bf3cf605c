"""A scattering transform of images (Bruna and Mallat, 2013), beside the public encoder.

Two orders of Morlet wavelets at two scales and eight angles: |x ⋆ ψ|, and ||x ⋆ ψ| ⋆ ψ'| at the coarser of
the two, each averaged over 4×4 pixels. Nothing is learnt, and no number is negative. Filters are Kymatio's
(Andreux et al., JMLR 2020): width 0.8·2ʲ, frequency 3π/4·2⁻ʲ, slant 1/2.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import fft

from pate_fed.learning.networks.encoder import ENOUGH, fit_encoder, leading_directions

SCALES, ANGLES = 2, 8
PLANES = 1 + SCALES * ANGLES + ANGLES**2
STEP = 2**SCALES  # pixels of the input that become one
WIDTH, FREQUENCY, SLANT = 0.8, 0.75 * np.pi, 4 / ANGLES
REACH = 2  # of a filter, in images, before it is wrapped around
AT_ONCE = 25  # images, whose second order takes 64 planes each
DIRECTIONS = 150  # of the logarithms
FLOOR = 0.1  # of a plane's mean, below which logarithms tell little apart

Floats = NDArray[np.float32]
Images = NDArray[np.uint8]


def scattering(images: Images) -> Floats:
    """Coefficients of uint8 (n, H, W, C), colours by their mean: float32 (n, 81, ⌊H/4⌋·⌊W/4⌋).

    The sides are multiples of 4.
    """
    parts = (_measured(images[start : start + AT_ONCE]) for start in range(0, len(images), AT_ONCE))
    return np.concatenate(list(parts))


class JointFeatures:
    """The public encoder's features beside leading directions of the coefficients' logarithms.

    Both are fitted to public images uint8 (n, H, W, C) without labels, and have a mean squared length of 1/2
    there.
    """

    def __init__(self, pool: Images) -> None:
        self._encoder = fit_encoder(pool)
        found = scattering(pool)
        self._means = _plane_means(found)
        logarithms = self._logarithms(found)
        self._centre = logarithms.mean(axis=0)
        some = np.linspace(0, len(pool) - 1, min(len(pool), ENOUGH)).astype(np.int64)
        centred = logarithms[some] - self._centre
        self._turn = leading_directions(torch.from_numpy(centred), DIRECTIONS).numpy()
        self._scales = [_length(self._encoder.transform(pool[some])), _length(centred @ self._turn)]

    def __call__(self, images: Images) -> Floats:
        """Of uint8 (n, H, W, C): float32 (n, features)."""
        turned = (self._logarithms(scattering(images)) - self._centre) @ self._turn
        both = zip((self._encoder.transform(images), turned), self._scales, strict=True)
        joint = np.concatenate([part / (2**0.5 * scale) for part, scale in both], axis=1)
        return np.asarray(joint, dtype=np.float32)

    def _logarithms(self, found: Floats) -> Floats:
        return np.asarray(np.log(found / self._means + np.float32(FLOOR)).reshape(len(found), -1))


def _plane_means(found: Floats) -> Floats:
    means: Floats = np.maximum(found.mean(axis=(0, 2), keepdims=True), 1e-6)
    return means


def _length(rows: Floats) -> float:
    return max(float(np.sqrt(np.square(rows).sum(axis=1).mean())), 1e-6)


def _measured(images: Images) -> Floats:
    grey = (images.mean(axis=3) / 255).astype(np.float32)
    wide = np.pad(grey, ((0, 0), (STEP, STEP), (STEP, STEP)), mode="reflect")
    wavelets, average = _filters(wide.shape[1], wide.shape[2])
    spectrum = fft.fft2(wide)[:, None]  # (n, 1, H, W)
    first = [_moduli(spectrum, each, 2**scale) for scale, each in enumerate(wavelets)]  # (n, angles, …) each
    second = [_moduli(first[0][:, [angle]], wavelets[1], 2) for angle in range(ANGLES)]
    means = [_averaged(each, average) for each in (spectrum, *first, *second)]
    return np.asarray(np.concatenate(means, axis=1).reshape(len(images), PLANES, -1))


def _moduli(spectrum: NDArray[Any], wavelets: Floats, step: int) -> NDArray[Any]:
    """The spectra of |x ⋆ ψ| for each ψ, at every `step`-th pixel: a coarse wave needs no more."""
    found: NDArray[Any] = fft.fft2(np.abs(fft.ifft2(_folded(spectrum * wavelets, step))))
    return found


def _averaged(spectrum: NDArray[Any], average: Floats) -> Floats:
    """Means over about 4×4 pixels, at every fourth one, without the margin: (n, planes, H/4, W/4)."""
    already = len(average) // spectrum.shape[-2]
    smooth = spectrum * (already**2 * _folded(average, already))
    found = fft.ifft2(_folded(smooth, STEP // already)).real[:, :, 1:-1, 1:-1]
    return np.asarray(np.maximum(found, 0), dtype=np.float32)


def _folded(spectrum: NDArray[Any], step: int) -> NDArray[Any]:
    """The spectrum of every `step`-th pixel, (..., H, W) to (..., H/step, W/step)."""
    rows, columns = spectrum.shape[-2] // step, spectrum.shape[-1] // step
    whole = spectrum.reshape(*spectrum.shape[:-2], step, rows, step, columns)
    return np.asarray(whole.mean(axis=(-4, -2)))


@cache
def _filters(rows: int, columns: int) -> tuple[Floats, Floats]:
    """Spectra, all real: of the wavelets (scales, angles, rows, columns), and of the average."""
    turns = [np.pi * angle / ANGLES for angle in range(ANGLES)]
    wavelets = [[_morlet(rows, columns, 2**scale, turn) for turn in turns] for scale in range(SCALES)]
    average = _wave(rows, columns, width=WIDTH * STEP / 2, frequency=0.0, turn=0.0, slant=1.0)
    average /= average.sum()
    return np.array(wavelets), np.fft.fft2(average).real.astype(np.float32)


def _morlet(rows: int, columns: int, scale: int, turn: float) -> Floats:
    """A wave under a Gaussian, less as much of the Gaussian as leaves no mean."""
    width = WIDTH * scale
    wave = _wave(rows, columns, width=width, frequency=FREQUENCY / scale, turn=turn, slant=SLANT)
    bell = _wave(rows, columns, width=width, frequency=0.0, turn=turn, slant=SLANT)
    morlet = (wave - wave.sum() / bell.sum() * bell) * SLANT / (2 * np.pi * width**2)
    return np.fft.fft2(morlet).real.astype(np.float32)


def _wave(
    rows: int, columns: int, *, width: float, frequency: float, turn: float, slant: float
) -> NDArray[np.complex128]:
    """exp(i·frequency·u) under a Gaussian, with u along `turn`, wrapped around the image's edges."""
    found = np.zeros((rows, columns), dtype=np.complex128)
    for down in range(-REACH, REACH + 1):
        for right in range(-REACH, REACH + 1):
            y, x = np.mgrid[:rows, :columns] + np.array([down * rows, right * columns])[:, None, None]
            along = x * np.cos(turn) + y * np.sin(turn)
            across = y * np.cos(turn) - x * np.sin(turn)
            bell = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
            found += bell * np.exp(1j * frequency * along)
    return found
