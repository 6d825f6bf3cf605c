"""What networks compute on: images as tensors, the device, optimisers, and models on disk."""

from __future__ import annotations

import inspect
import io
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.disk import MOST_TABLE, grows_little, read_file, write_result
from pate_fed.errors import InputError, IntegrityError, PateFedError, naming_refusal

SMALLEST = 8


def check_images(images: NDArray[np.uint8], shape: tuple[int, int, int] | None = None) -> None:
    """Hold images to uint8 (n, height, width, 1 or 3), each at least 8×8, or of `shape`; else InputError."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise InputError(
            f"images are {images.dtype} {images.shape}: uint8 (n, height, width, 1 or 3) is meant"
        )
    if shape is not None and images.shape[1:] != shape:
        raise InputError(f"images are {images.shape[1:]} each: the model takes {shape}")
    if min(images.shape[1:3]) < SMALLEST:
        raise InputError(f"images are {images.shape[1:3]}: at least {SMALLEST}×{SMALLEST} is meant")


def check_labels(labels: NDArray[np.int64], count: int, num_classes: int) -> None:
    """Hold `labels` to integers (count,) in 0 .. num_classes - 1, or InputError."""
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != (count,):
        raise InputError(f"labels are {labels.dtype} {labels.shape}: integers ({count},) are meant")
    if num_classes < 2:
        raise InputError(f"num_classes is {num_classes}: at least 2 is meant")
    if count and not (labels.min() >= 0 and labels.max() < num_classes):
        raise InputError(f"labels run from {labels.min()} to {labels.max()}: 0 to {num_classes - 1} is meant")


def image_shape(images: NDArray[np.uint8]) -> tuple[int, int, int]:
    """(height, width, channels)."""
    height, width, channels = images.shape[1:]
    return int(height), int(width), int(channels)


def to_tensor(images: NDArray[np.uint8], device: str) -> Tensor:
    """uint8 (n, H, W, C) to float (n, C, H, W) in [0, 1], channels last in memory as the images are."""
    # A copy: the images may be read-only, and torch wants memory that it may write to.
    pixels = torch.from_numpy(np.array(images)).to(device).permute(0, 3, 1, 2)
    return pixels.to(torch.float32).div_(255.0).contiguous(memory_format=torch.channels_last)


def tensor_batches(images: NDArray[np.uint8], size: int, device: str) -> Iterator[Tensor]:
    """The same in batches of up to `size` images."""
    for start in range(0, len(images), size):
        yield to_tensor(images[start : start + size], device)


def check_weights(model: nn.Module, what: str, then: str) -> None:
    """Hold every weight of a model to finite numbers; PateFedError names `what`, the weight, and `then`."""
    for name, value in model.state_dict().items():
        if not bool(torch.isfinite(value).all()):
            raise PateFedError(f"{what}: weight {name} is not finite; {then}")


# Where learning runs, and the guard that makes it repeatable without disturbing the caller's randomness.


def resolve_device(name: str) -> str:
    """The device for "auto", "cpu", "cuda" or "cuda:N": "auto" is cuda where there is one, else cpu.

    Raises:
        InputError: no such device, or it is not there.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return name
    kind, _, number = name.partition(":")
    if kind != "cuda" or (":" in name and not number.isdigit()):
        raise InputError(f"--device {name}: auto, cpu, cuda or cuda:N is meant")
    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        raise InputError(f"--device {name}: torch sees {count} CUDA devices here")
    return name


class NoRoom(PateFedError):
    """A card's memory is too small."""


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Torch's generators of the CPU and of `device` start at `seed` inside and are put back after.

    Convolutions are held to deterministic algorithms inside, without a lasting change of a global flag.

    Raises:
        NoRoom: what is computed inside needs more memory than the card has.
    """
    cuda = [torch.device(device)] if device.startswith("cuda") else []
    with (
        torch.random.fork_rng(devices=cuda),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True),
    ):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(cuda[0]):
                torch.cuda.manual_seed(seed)
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise NoRoom(
                f"{device} has too little memory for this model and its data: set a smaller batch_size or "
                "network, or --device cpu"
            ) from error


_WARM = 3  # steps before one is recorded, in which libraries make room for themselves


class Recorded:
    """A step that a card takes again and again: after three calls one CUDA graph, which is replayed.

    Small networks' steps are mostly launches of kernels, which a graph spares. A step waits for nothing of
    the card, gets tensors of the same shapes each time, and writes what it tells into tensors that stay.
    """

    def __init__(self, step: Callable[..., None], device: torch.device) -> None:
        self._step, self._device, self._calls = step, device, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._given: list[Tensor] = []

    def __call__(self, *given: Tensor) -> None:
        """Take the step with `given`."""
        with torch.cuda.device(self._device):
            if self._calls < _WARM:
                self._calls += 1
                aside = _aside(torch.cuda.current_device())
                aside.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(aside):
                    self._step(*given)
                torch.cuda.current_stream().wait_stream(aside)
                return
            if self._graph is None:
                self._given = [each.clone() for each in given]
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, stream=_aside(torch.cuda.current_device())):
                    self._step(*self._given)
            for held, new in zip(self._given, given, strict=True):
                held.copy_(new)
            self._graph.replay()


@cache
def _aside(device: int) -> torch.cuda.Stream:
    """The stream of a card on which steps are recorded: one, as libraries keep room for each."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def recorded(step: Callable[..., None], device: torch.device) -> Callable[..., None]:
    """The `step` itself, on a card as `Recorded`."""
    return Recorded(step, device) if device.type == "cuda" else step


# Models on disk: plain values and tensors, written whole or not at all, read without running any code.


def write_model(path: Path, kind: str, content: dict[str, Any], *, durable: bool = True) -> None:
    """Write the model `content` of `kind` to `path` as `write_result` does."""
    buffer = io.BytesIO()
    torch.save({"kind": kind, "version": 1, **content}, buffer)
    write_result(path, buffer.getvalue(), durable=durable)


def is_whole(data: bytes) -> bool:
    """Whether each part of a file of torch's has the checksum it was written with; torch does not look."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return grows_little(archive.infolist(), len(data)) and archive.testzip() is None
    except Exception:  # zipfile raises whatever it meets first in damaged bytes
        return False


def read_model(path: Path, kind: str) -> dict[str, Any]:
    """What `write_model` wrote, tensors on the CPU.

    Raises:
        InputError: there is no such file, or it cannot be opened.
        IntegrityError: the file is damaged, or is another kind of model.
    """
    with naming_refusal(f"{path}: cannot be read"):
        data = read_file(path, most=MOST_TABLE)
    if not is_whole(data):
        raise IntegrityError(f"{path}: not a {kind} that pate_fed wrote, or damaged")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a TorchScript file, which is refused below
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets first in damaged bytes
        raise IntegrityError(f"{path}: not a {kind} that pate_fed wrote, or damaged") from error
    if not isinstance(content, dict) or content.get("kind") != kind or content.get("version") != 1:
        raise IntegrityError(f"{path}: not a {kind} that this version of pate_fed can read")
    return content


@contextmanager
def building_network(
    content: dict[str, Any], kind: str, *, where: str
) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Image shape and number of classes of a model's content, to build its networks from.

    What does not fit inside is an IntegrityError. Inside torch's randomness is on loan: initial weights are
    drawn, and overwritten at once.
    """
    try:
        rows, columns, channels = content["image_shape"]
        with torch.random.fork_rng(devices=[]):
            yield (rows, columns, channels), content["num_classes"]
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, InputError) as error:
        raise IntegrityError(f"{where}: the {kind}'s settings and weights do not fit together") from error


# PyTorch's optimisers without the import of its compiler, which each would load at its first use.
#
# The compiler (`torch._dynamo`) takes 1.4 s to import, more than a light training takes, and nothing here
# is compiled. The functions underneath PyTorch's wrappers are the same, and so is every number.


class _Eager:
    """The methods of every optimiser as they are written."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class Adam(_Eager, torch.optim.Adam):
    """Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015)."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(_Eager, torch.optim.AdamW):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019)."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class SGD(_Eager, torch.optim.SGD):
    """Stochastic gradient descent, with momentum where asked for."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
