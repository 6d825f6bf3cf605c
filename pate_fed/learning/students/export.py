"""A student for use without this package: one TorchScript or ONNX file that takes images as they are.

The file says itself what it takes and tells: its attributes are `image_shape`, [height, width, channels],
`class_names`, in the order of the probabilities (empty where the classes have no names), and `sharpness`, the
calibration's exponent, which is applied already.
"""

from __future__ import annotations

import copy
import io
import json
import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pate_fed.disk import write_result
from pate_fed.errors import InputError
from pate_fed.learning.features.build import (
    FARTHEST,
    FINE,
    SPREAD,
    BinFeatures,
    LinearAndKernel,
    TableEmbedding,
)
from pate_fed.learning.features.kernel import CONSTANT
from pate_fed.learning.networks.classifiers import Classifier, Shape
from pate_fed.learning.students.class_sums import SumsStudent
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
    model = _FromPixels(networks, sharpness).eval().requires_grad_(False)
    known = {"image_shape": list(image_shape), "class_names": list(class_names), "sharpness": sharpness}
    example = torch.zeros((2, *image_shape), dtype=torch.uint8)
    _write_graph(model, example, path, name="images", about=_as_json(known) | {**(about or {})})


def write_sums_onnx(
    student: Any,
    path: Path,
    *,
    columns: Sequence[tuple[str, Sequence[str]]],
    class_names: Sequence[str] = (),
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a student of class sums of a table's rows: input `rows` float64 (n, inputs), as they are encoded.

    A number of `columns` is one input, NaN where it is missing; a category one a value, 1 or 0.

    Raises:
        InputError: as `write_onnx`, or it tells no class, or its map is not a study's default for tables.
    """
    known = isinstance(student, SumsStudent) and student.target_range is None and not student.several
    if not known or not isinstance(student.feature_map, LinearAndKernel | BinFeatures):
        raise InputError(f"{path}: this student has no form as ONNX; class sums that tell classes have one")
    told = _as_json({"columns": [[name, list(values)] for name, values in columns]})
    told |= _as_json({"class_names": list(class_names)})
    example = torch.zeros((2, sum(student.feature_map.settings.columns)), dtype=torch.float64)
    _write_graph(_OfRows(student).eval(), example, path, name="rows", about=told | {**(about or {})})


class _OfRows(nn.Module):
    """Rows to probabilities of a student of class sums: what its map does, in doubles."""

    def __init__(self, student: SumsStudent) -> None:
        super().__init__()
        self.map, self.weights = student.feature_map, torch.from_numpy(student.weights)
        self.sharpness, self.offset = student.sharpness, torch.from_numpy(student.offset)

    def forward(self, rows: Tensor) -> Tensor:
        found = self._bins(rows) if isinstance(self.map, BinFeatures) else self._linear(rows)
        scores = found @ self.weights / math.sqrt(self.map.squared_norm)
        return (self.sharpness * scores + self.offset).softmax(dim=1).to(torch.float32)

    def _parts(self, rows: Tensor, knots: Sequence[Sequence[float]]) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Each column's inputs, or where its number stands among the knots, and whether it is missing."""
        at = 0
        for width, own in zip(self.map.settings.columns, knots, strict=True):
            part, at = rows[:, at : at + width], at + width
            if not own:
                chosen = (part > 0).double()
                yield chosen, 1 - chosen.amax(dim=1, keepdim=True), 0
                continue
            missing, ends = part.isnan(), torch.tensor(own, dtype=torch.float64)
            part = torch.where(missing, ends[0], part)
            rank = (part >= ends[0]).double()
            if len(own) > 1:
                rank = ((part - ends[:-1]) / ends.diff()).clamp(0, 1).sum(dim=1, keepdim=True)
            yield rank, missing.double(), len(own)

    def _bins(self, rows: Tensor) -> Tensor:
        assert isinstance(self.map, BinFeatures)
        lattice, found = self.map.settings.lattice, [torch.full_like(rows[:, :1], self.map.settings.lattice)]
        for part, missing, count in self._parts(rows, self.map.knots):
            if count:
                rank = part if count > 1 else torch.zeros_like(part)
                near = (1 - (rank - torch.arange(count, dtype=torch.float64)).abs()).clamp(0)
                part = near.sqrt() * (1 - missing)
            found += [(lattice * part).floor(), lattice * missing]
        return torch.cat(found, dim=1)

    def _linear(self, rows: Tensor) -> Tensor:
        assert isinstance(self.map, LinearAndKernel)
        kernel, lattice = self.map.kernel, self.map.settings.lattice
        assert isinstance(kernel.embedding, TableEmbedding)
        whole = math.isqrt(lattice**2 - kernel.squared_norm)
        constant, linear, embedded, at = whole // CONSTANT, list[Tensor](), list[Tensor](), 0
        for place, (part, missing, count) in enumerate(self._parts(rows, kernel.embedding.knots)):
            embedded += [part, missing]
            own = [part, missing]
            if count:
                embedded[-2] = SPREAD * (part / max(1, count - 1) - 0.5) * (1 - missing)
                mean, deviation = map(float, self.map.spread[place])
                far = ((rows[:, at : at + 1] - mean) / deviation).clamp(-FARTHEST, FARTHEST)
                far = torch.where(missing > 0, 0.0, far)
                steps = (FINE * far).round() / FINE
                own = [steps.clamp(0), (-steps).clamp(0), missing]
            linear += own
            at += self.map.settings.columns[place]
        x = FINE * torch.cat(linear, dim=1)
        length = x.square().sum(dim=1, keepdim=True).sqrt().clamp(self.map.spread[-1, 0])
        x = (x * (math.sqrt(whole**2 - constant**2) / length)).floor()
        points, root = torch.from_numpy(kernel.points.astype(np.float64)), kernel.root
        e = (torch.cat(embedded, dim=1) / kernel.embedding.scale).float().double()
        far = e.square().sum(dim=1, keepdim=True) + points.square().sum(dim=1) - 2 * e @ points.T
        near = ((-far).exp() @ torch.from_numpy(root)).clamp(0)
        own_constant = kernel.settings.lattice // CONSTANT
        rest = math.sqrt(kernel.settings.lattice**2 - own_constant**2)
        near = (near * (rest / near.square().sum(dim=1, keepdim=True).sqrt().clamp(1e-300))).floor()
        first = torch.full_like(rows[:, :1], constant)
        return torch.cat([first, x, torch.full_like(first, own_constant), near], dim=1)


def _as_json(known: Mapping[str, Any]) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in known.items()}


def _write_graph(model: nn.Module, example: Tensor, path: Path, *, name: str, about: dict[str, str]) -> None:
    """Write what a model makes of inputs like the example as ONNX, with metadata."""
    try:
        import onnx
    except ImportError as error:
        raise InputError("ONNX files need the package onnx: pip install 'pate-fed[onnx]'") from error
    any_number = {0: "n"}

    def write() -> bytes:
        content = io.BytesIO()
        if isinstance(model, _FromPixels):
            height, width, channels = example.shape[1:]
            _traced(model, (height, width, channels))
        try:
            torch.onnx.export(
                model,
                (example,),
                content,  # type: ignore[arg-type]  # the older exporter writes to memory, too
                dynamo=False,
                input_names=[name],
                output_names=["probabilities"],
                dynamic_axes={name: any_number, "probabilities": any_number},
                opset_version=ONNX_OPSET,
            )
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"the student has no form as ONNX ({reason})") from error
        return content.getvalue()

    # torch's newer exporter needs two more packages for the same graph.
    graph = onnx.load_from_string(_quietly(write))
    onnx.helper.set_model_props(graph, about)
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
