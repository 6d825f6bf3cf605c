"""An epoch must not wait for the device: no operation in it needs a value on the host, but the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pate_fed.learning import StudentSettings
from pate_fed.learning.features import fit_encoder
from pate_fed.learning.fixmatch import FixMatch
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.sets import Sets
from pate_fed.learning.trainer import Trainer

aten = torch.ops.aten
# What needs a value, or a shape that depends on values; on a GPU the host would wait for each.
WAITING = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.masked_select,
    aten.unique_consecutive,
    aten._unique2,
    aten.bincount,
    aten.equal,
}


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that would wait. `tolist` on the CPU is none, so an epoch's last step is free."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waited: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func.overloadpacket in (aten.index, aten.index_put, aten.index_put_) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if func.overloadpacket in WAITING or by_mask:
            self.waited.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: float(x.sum()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: bool((x > 0).all()),
        lambda x: x.masked_select(x > 0),
    ],
)
def test_the_watch_sees_waiting(wait: Callable[[torch.Tensor], object]) -> None:
    with Watch() as watch:
        wait(torch.randn(5))
    assert watch.waited


@pytest.mark.parametrize("network", ["small-cnn", "deep-cnn"])
@pytest.mark.parametrize("name", ["supervised", "gan", "co-teaching", "pate+", "vat", "fixmatch"])
def test_an_epoch_never_waits(stripes: Callable[..., Any], name: str, network: str) -> None:
    images, truth = stripes(48)
    settings = StudentSettings(name=name, network=network, epochs=2, batch_size=8, noise_rate=0.2)
    sets = Sets.of(torch.arange(16).numpy(), truth[:16], truth[:16], count=48, device="cpu")
    pixels = to_tensor(images, "cpu")
    shape = (images.shape[1], images.shape[2], images.shape[3])
    learner = (
        FixMatch.of_images(
            settings, shape, 4, pixels, fit_encoder(images) if network == "small-cnn" else None
        )
        if name == "fixmatch"
        else Trainer(settings, shape, 4, pixels, samples=16)
    )
    with Watch() as watch:
        learner.run_epoch(1, sets)
    assert watch.waited == []
