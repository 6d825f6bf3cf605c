"""An epoch must not wait for the device: no operation in it needs a value on the host, but the last.

The device "meta" stands for a GPU where there is none: tensors there have no values that could be read, and
mix with none of the host's.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch.utils._python_dispatch import TorchDispatchMode

from pate_fed.learning import StudentSettings, tensors
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.students import gan
from pate_fed.learning.students.closed_form import PoolFeatures
from pate_fed.learning.students.fixmatch import FixMatch
from pate_fed.learning.students.gan import GANTrainer
from pate_fed.learning.students.trainer import LabelledPool, TrainingSets
from pate_fed.learning.tensors import to_tensor

STUDENTS = ("supervised", "gan", "co-teaching", "pate+", "vat", "fixmatch")


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


def _settings(name: str, network: str) -> StudentSettings:
    """Two batches of 24 inputs, 8 of them labelled, or where one takes long a single one."""
    size = 8 if network == "small-cnn" else 16
    return StudentSettings(name=name, network=network, epochs=2, batch_size=size, noise_rate=0.2)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that would wait. `tolist` on the CPU is none, so an epoch's last step is free."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """The compiler is not asked, whose import takes longer than these tests."""
        return False

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
@pytest.mark.parametrize("name", STUDENTS)
def test_an_epoch_never_waits(
    stripes: Callable[..., Any], pool_of: Callable[..., LabelledPool], name: str, network: str
) -> None:
    images, truth = stripes(24, size=8)
    settings = _settings(name, network)
    sets = TrainingSets.of(pool_of(images, truth[:8], true_labels=truth[:8]), "cpu")
    pixels = to_tensor(images, "cpu")
    shape = (images.shape[1], images.shape[2], images.shape[3])
    trainer = (
        FixMatch.of_images(
            settings, shape, 4, pixels, fit_encoder(images) if network == "small-cnn" else None
        )
        if name == "fixmatch"
        else GANTrainer(settings, shape, 4, pixels)
    )
    with Watch() as watch:
        trainer.run_epoch(1, sets)
    assert watch.waited == []


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device "meta" knows no fused optimisers, and no backward pass of its own before PyTorch 2.10."""
    if Version(torch.__version__).release < (2, 10):
        pytest.skip('the device "meta" learns from PyTorch 2.10 on')
    for name in ("Adam", "SGD"):
        whole = getattr(tensors, name)
        monkeypatch.setattr(
            tensors,
            name,
            lambda weights, whole=whole, **options: whole(weights, **options | {"fused": False}),
        )


@cache
def _features() -> PoolFeatures:
    """Of 24 images, on the device "meta"."""
    images = np.arange(24 * 16 * 16 * 3, dtype=np.uint8).reshape(24, 16, 16, 3)
    return PoolFeatures(fit_encoder(images), images, "meta")


def _elsewhere(name: str, network: str) -> tuple[GANTrainer | FixMatch, TrainingSets]:
    """A student of 24 inputs, 8 of them labelled, all of it on the device "meta"."""
    features = _features() if network == "encoder" else None
    settings = _settings(name, network)
    pixels, shape = torch.zeros(24, 3, 16, 16, device="meta"), (16, 16, 3)
    index = torch.arange(24, device="meta")
    sets = TrainingSets(
        labelled=index[:8],
        labels=torch.zeros_like(index[:8]),
        wrong=torch.zeros_like(index[:8], dtype=torch.bool),
        truth_known=True,
        unlabelled=index[8:],
    )
    if name == "fixmatch":
        encoder = None if features is None else features.encoder
        return FixMatch.of_images(settings, shape, 4, pixels, encoder), sets
    head = torch.zeros(24, 4, device="meta") if settings.co_teaching else None
    return GANTrainer(settings, shape, 4, pixels, features, head=head), sets


def _last_line(trainer: GANTrainer | FixMatch, sets: TrainingSets) -> str:
    """The line at which an epoch first asks for a value."""
    with pytest.raises((NotImplementedError, RuntimeError)) as stopped:
        trainer.run_epoch(1, sets)
    return str(traceback.extract_tb(stopped.value.__traceback__)[-1].line)


@pytest.mark.usefixtures("unfused")
@pytest.mark.parametrize(
    ("name", "network"),
    [(name, network) for name in STUDENTS for network in ("encoder", "small-cnn")]
    + [("pate+", "dense")]
    + [pytest.param("pate+", "deep-cnn", marks=pytest.mark.slow)],
)
def test_an_epoch_makes_everything_on_its_device(name: str, network: str) -> None:
    trainer, sets = _elsewhere(name, network)
    assert "sums.tolist()" in _last_line(trainer, sets)


@pytest.mark.usefixtures("unfused")
@pytest.mark.parametrize(
    "slip",
    [lambda x: x * float(x.sum()), lambda x: x + torch.zeros(x.shape), lambda x: x[x > 0].sum() + x],
)
def test_a_value_or_a_tensor_of_the_host_in_an_epoch_is_seen(
    slip: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gan.masked_mean
    monkeypatch.setattr(gan, "masked_mean", lambda loss, keep: whole(slip(loss), keep))
    trainer, sets = _elsewhere("pate+", "small-cnn")
    assert "sums.tolist()" not in _last_line(trainer, sets)
