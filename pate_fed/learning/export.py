"""A student for use without this package: one TorchScript file that takes images as they are."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from pate_fed.disk import write_result
from pate_fed.learning.models import Classifier, Shape

__all__ = ["write_torchscript"]


class _FromPixels(nn.Module):
    """uint8 (n, H, W, C) to float32 probabilities (n, K): preprocessing and all discriminators in one."""

    def __init__(self, networks: Sequence[Classifier], sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.networks = nn.ModuleList(copy.deepcopy(network).cpu() for network in networks)

    def forward(self, images: Tensor) -> Tensor:
        x = images.permute(0, 3, 1, 2).to(torch.float32) / 255.0  # (n, C, H, W) in [0, 1]
        shares = [(self.sharpness * network(x)).softmax(dim=1) for network in self.networks]
        return torch.stack(shares).mean(dim=0)


def write_torchscript(
    networks: Sequence[Classifier], image_shape: Shape, path: Path, *, sharpness: float = 1.0
) -> None:
    """Write `networks` as one function to `path`; `torch.jit.load` of any torch from 2.4 reads it on a CPU.

    `sharpness` multiplies their logits, as in `Student`.

    Raises:
        InputError: the folder cannot be written to.
    """
    model = _FromPixels(networks, sharpness).eval()
    example = torch.zeros((2, *image_shape), dtype=torch.uint8)
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        # torch calls TorchScript old, but the files of its successor are tied to one version of torch.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, example)  # type: ignore[no-untyped-call]
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
    write_result(path, buffer.getvalue())
