"""A student for use without this package: one TorchScript or ONNX file that takes images as they are.

The file says itself what it takes and tells: its attributes are `image_shape`, [height, width, channels],
`class_names`, in the order of the probabilities (empty where the classes have no names), and `sharpness`, the
calibration's exponent, which is applied already.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

from pate_fed.disk import write_result
from pate_fed.errors import InputError
from pate_fed.learning.networks.classifiers import Classifier, Shape
from pate_fed.learning.students.losses import sharpened

_SAME = 1e-4  # of probabilities
ONNX_OPSET = 17  # of 2022: what is deployed in hospitals is seldom new


class _FromPixels(nn.Module):
    """uint8 (n, H, W, C) to float32 probabilities (n, K): preprocessing and all discriminators in one."""

    def __init__(self, networks: Sequence[Classifier], sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.networks = nn.ModuleList(copy.deepcopy(network).cpu() for network in networks)

    def forward(self, images: Tensor) -> Tensor:
        x = images.permute(0, 3, 1, 2).to(torch.float32) / 255.0  # (n, C, H, W) in [0, 1]
        shares = [network(x).softmax(dim=1) for network in self.networks]
        return sharpened(torch.stack(shares).mean(dim=0), self.sharpness)


class _Checked(nn.Module):
    """The same, refusing images that it was not made for.

    A traced network takes them without a word: pixels from 0 to 1 look black to it, and an image of a pixel
    more or less falls out of nowhere when it is pooled.
    """

    def __init__(
        self, traced: nn.Module, image_shape: Shape, class_names: Sequence[str], sharpness: float
    ) -> None:
        super().__init__()
        self.sharpness = float(sharpness)
        self.traced = traced
        self.image_shape = list(image_shape)
        self.class_names = torch.jit.Attribute(list(class_names), list[str])

    def forward(self, images: Tensor) -> Tensor:
        wanted = self.image_shape
        if images.dtype != torch.uint8 or list(images.shape[1:]) != wanted:
            raise ValueError(
                f"images are of shape {list(images.shape)}: uint8 values from 0 to 255 of shape "
                f"[n, {wanted[0]}, {wanted[1]}, {wanted[2]}] are meant"
            )
        probabilities: Tensor = self.traced(images)
        return probabilities


def write_torchscript(
    networks: Sequence[Classifier],
    image_shape: Shape,
    path: Path,
    *,
    sharpness: float = 1.0,
    class_names: Sequence[str] = (),
) -> None:
    """Write `networks` as one function to `path`; `torch.jit.load` of any torch from 2.4 reads it on a CPU.

    Probabilities are raised to the power of `sharpness`, as in `Student`.

    Raises:
        InputError: the networks branch on their inputs, or the folder cannot be written to.
    """
    model = _FromPixels(networks, sharpness).eval().requires_grad_(False)

    def write() -> bytes:
        checked = torch.jit.script(
            _Checked(_traced(model, image_shape), image_shape, class_names, sharpness).eval()
        )
        buffer = io.BytesIO()
        torch.jit.save(checked, buffer)
        return buffer.getvalue()

    # torch calls TorchScript old, but the files of its successor are tied to one version of torch.
    write_result(path, _without_paths(_quietly(write)))


def write_onnx(
    networks: Sequence[Classifier],
    image_shape: Shape,
    path: Path,
    *,
    sharpness: float = 1.0,
    class_names: Sequence[str] = (),
    about: Mapping[str, str] | None = None,
) -> None:
    """Write the same as ONNX, which any runtime reads: input `images`, output `probabilities`.

    Its metadata are `image_shape`, `class_names` and `sharpness` as JSON, and what else is said in `about`.

    Raises:
        InputError: the package onnx is not installed, the networks have no ONNX form or branch on their
            inputs, or the folder cannot be written to.
    """
    try:
        import onnx
    except ImportError as error:
        raise InputError("ONNX files need the package onnx: pip install 'pate-fed[onnx]'") from error
    model = _FromPixels(networks, sharpness).eval().requires_grad_(False)
    example = torch.zeros((2, *image_shape), dtype=torch.uint8)
    any_number = {0: "n"}

    def write() -> bytes:
        content = io.BytesIO()
        _traced(model, image_shape)
        try:
            torch.onnx.export(
                model,
                (example,),
                content,  # type: ignore[arg-type]  # the older exporter writes to memory, too
                dynamo=False,
                input_names=["images"],
                output_names=["probabilities"],
                dynamic_axes={"images": any_number, "probabilities": any_number},
                opset_version=ONNX_OPSET,
            )
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"the student has no form as ONNX ({reason})") from error
        return content.getvalue()

    # torch's newer exporter needs two more packages for the same graph.
    graph = onnx.load_from_string(_quietly(write))
    known = {"image_shape": list(image_shape), "class_names": list(class_names), "sharpness": sharpness}
    told = {key: json.dumps(value) for key, value in known.items()}
    onnx.helper.set_model_props(graph, {**told, **(about or {})})
    write_result(path, graph.SerializeToString())


def _quietly(write: Callable[[], bytes]) -> bytes:
    """What `write` gives, without gradients and torch's warnings, in a thread of its own.

    With each operation torch notes the whole stack above it, which deep in a study takes as long again.
    """

    def without_gradients() -> bytes:
        with torch.inference_mode(False), torch.no_grad():
            return write()

    with warnings.catch_warnings(), ThreadPoolExecutor(1) as thread:
        warnings.simplefilter("ignore")
        return thread.submit(without_gradients).result()


def _traced(model: nn.Module, image_shape: Shape) -> nn.Module:
    """The model's operations on two images, as a file has them: for other images, and more, the same."""
    example = torch.zeros((2, *image_shape), dtype=torch.uint8)
    # Torch's own check asks with the same images again, so that it finds no branch.
    traced: nn.Module = torch.jit.trace(model, example, check_trace=False)  # type: ignore[no-untyped-call]
    drawn = torch.Generator().manual_seed(0)
    for number in (1, 3):
        images = torch.randint(256, (number, *image_shape), dtype=torch.uint8, generator=drawn)
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            found = traced(images)  # optimising takes longer than running once
        if not torch.allclose(found, model(images), atol=_SAME):
            raise InputError(
                "the student's network branches on its inputs, which no file of operations can hold; a "
                "network that does the same for every image is meant"
            )
    return traced


def _without_paths(archive: bytes) -> bytes:
    """The file without torch's notes for debugging: they name folders and files of this machine."""
    content = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as whole, zipfile.ZipFile(content, "w") as part:
        for entry in whole.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                part.writestr(zipfile.ZipInfo(entry.filename), whole.read(entry))
    return content.getvalue()
