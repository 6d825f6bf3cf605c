"""Where learning runs, and the guard that makes it repeatable without disturbing the caller's randomness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pate_fed.errors import InputError


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


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Torch's generators of the CPU and of `device` start at `seed` inside and are put back after.

    Convolutions are held to deterministic algorithms inside, without a lasting change of a global flag.
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
        yield
