"""A card that is not there: tensors that say they are on `cuda` and mix with the CPU's as little as there.

What each operation computes is the CPU's. So code for a GPU runs where there is none, up to what a GPU's
own arithmetic, streams and memory do: a tensor left on the wrong side, a generator of the wrong device or a
`.numpy()` without `.cpu()` raises as it would there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from pate_fed.learning import tensors

_CARD, _CPU = torch.device("cuda", 0), torch.device("cpu")
_MEMORY = 80 * 10**9  # bytes
_aten = torch.ops.aten
# Of tensors of both sides: copies, and what may be indexed by the CPU's indices.
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
_INDEXED = {_aten.index.Tensor, _aten.index_put_.default, _aten._index_put_impl_.default}
# Not even a number of the CPU (a tensor without dimensions) may stand beside a card's tensor in these.
_STRICT = {_aten.gather.default, _aten.index_select.default, _aten.scatter_.src, _aten.cat.default}


class OnCard(torch.Tensor):
    """A tensor that says it is on the card, to Python; autograd's engine sees one of the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnCard:
        made: OnCard = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=_CPU,
        )
        made.held = held
        return made

    device = _CARD  # type: ignore[assignment]
    is_cuda = True
    is_cpu = False

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnCard({self.held!r})"

    def tolist(self) -> Any:
        return self.held.tolist()

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.to(_CPU)

    def to(self, *args: Any, **options: Any) -> torch.Tensor:
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **options)  # type: ignore[attr-defined]
        if device is None or device.type == "cuda":
            return self if dtype in (None, self.dtype) else super().to(dtype)
        found: torch.Tensor = _aten._to_copy.default(self, dtype=dtype or self.dtype, device=device)
        return found

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(function, args, kwargs or {})


class Card(TorchDispatchMode):
    """Tensors that are made with a card as their device are on it. It has done so many `operations`."""

    operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """The compiler is not asked, whose import takes two seconds."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = _run(function, args, kwargs or {})
        self.operations += isinstance(made, OnCard)
        return made


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation gives, on the side on which it would be."""
    given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    here = [each for each in given if not isinstance(each, OnCard)]
    there = len(here) < len(given)
    if there and here:
        _check_mixed(function, given, here)
    device = kwargs.get("device")
    goes = there
    if device is not None and (function is _aten._to_copy.default or not there):
        goes = device.type == "cuda"  # else it is the one that the engine sees
    if goes and kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu' ({function})")
    held_args, held = tree_map(lambda each: each.held if isinstance(each, OnCard) else each, (args, kwargs))
    if device is not None:
        held["device"] = _CPU
    found = function(*held_args, **held)
    written = _written(function, args, kwargs)
    if written:
        return written[0] if len(written) == 1 else tuple(written)
    return (
        tree_map(lambda each: OnCard(each) if isinstance(each, torch.Tensor) else each, found)
        if goes
        else found
    )


def _written(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What an operation writes into and returns: in place, or `out`."""
    if not any(each.alias_info is not None and each.alias_info.is_write for each in function._schema.returns):
        return []
    named = dict(zip((each.name for each in function._schema.arguments), args, strict=False)) | kwargs
    return [
        named[each.name]
        for each in function._schema.arguments
        if each.alias_info is not None and each.alias_info.is_write
    ]


def _check_mixed(function: Any, given: list[torch.Tensor], here: list[torch.Tensor]) -> None:
    if function in _COPIES or (function in _INDEXED and isinstance(given[0], OnCard)):
        return
    if function not in _STRICT and all(each.dim() == 0 for each in here):
        return
    sides = [(tuple(each.shape), "cuda" if isinstance(each, OnCard) else "cpu") for each in given]
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two ({function}, {sides})"
    )


def _pad_sequence(parts: list[torch.Tensor], *, batch_first: bool) -> torch.Tensor:
    """`nn.utils.rnn.pad_sequence`, which asks below Python where the first of them is."""
    assert batch_first
    padded = parts[0].new_zeros(len(parts), max(map(len, parts)), *parts[0].shape[1:])
    for room, part in zip(padded, parts, strict=True):
        room[: len(part)] = part
    return padded


def _one_hot(labels: torch.Tensor, num_classes: int) -> torch.Tensor:
    """`nn.functional.one_hot`, likewise."""
    rows = labels.new_zeros(*labels.shape, num_classes)
    return rows.scatter_(-1, labels[..., None], torch.ones_like(rows))


def _no_grad(mode: bool = True) -> torch.no_grad:
    assert mode in (True, False)
    return torch.no_grad()


def _unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of TorchScript's, which takes tensors of the CPU and follows no modes."""

    def call(*args: Any, **options: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **options)

    return call


@contextmanager
def pretend_card() -> Iterator[Card]:
    """One CUDA device, as far as PyTorch is asked."""
    cuda: dict[str, Callable[..., Any]] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": lambda _: nullcontext(),
        "manual_seed": lambda _: None,  # its draws are the CPU's
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_: None,
        "synchronize": lambda *_: None,
        "get_device_name": lambda *_: "a card that is not there",
        "mem_get_info": lambda *_: (_MEMORY, _MEMORY),
        "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "empty_cache": lambda: None,
    }
    if Version(torch.__version__).release < (2, 15):
        pytest.skip("a card is pretended with parts that PyTorch has from 2.15 on")
    torch._C._ensureCUDADeviceGuardSet()  # type: ignore[attr-defined]  # one that does nothing
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in cuda.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(torch.nn.utils.rnn, "pad_sequence", _pad_sequence)
        patch.setattr(torch.nn.functional, "one_hot", _one_hot)
        for name in ("trace", "script", "save", "load"):
            patch.setattr(torch.jit, name, _unseen(getattr(torch.jit, name)))
        patch.setattr(tensors, "recorded", lambda step, device: step)  # it has no graphs
        patch.setattr(torch, "inference_mode", _no_grad)  # it knows no views of subclasses
        torch.__future__.set_swap_module_params_on_conversion(True)
        torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]  # of `torch.tensor`
        try:
            with Card() as card:
                yield card
        finally:
            torch._C._set_only_lift_cpu_tensors(False)  # type: ignore[attr-defined]
            torch.__future__.set_swap_module_params_on_conversion(swaps)
