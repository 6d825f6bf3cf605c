"""A recorded step: taken call by call at first, then replayed with what is given put into its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pate_fed.learning import tensors
from pate_fed.learning.tensors import Recorded, recorded


def test_on_a_cpu_a_step_is_itself() -> None:
    def step(given: torch.Tensor) -> None:
        raise AssertionError

    assert recorded(step, torch.device("cpu")) is step


def test_after_three_calls_one_recording_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for graphs that keeps what was recorded, and does it again at each replay."""
    recordings: list[Any] = []

    class Graph:
        def __init__(self) -> None:
            recordings.append(self)
            self.again: Callable[[], None] | None = None
            self.replays = 0

        def replay(self) -> None:
            assert self.again is not None
            self.replays += 1
            self.again()

    @contextmanager
    def graph(made: Graph, *, stream: object) -> Iterator[None]:
        before = total.clone()
        yield
        total.copy_(before)  # a recording computes nothing
        held = seen[-1]
        made.again = lambda: step(held)

    stream = SimpleNamespace(wait_stream=lambda other: None)
    stand_ins: dict[str, Any] = {
        "device": lambda device: nullcontext(),
        "current_device": lambda: 0,
        "current_stream": lambda: stream,
        "stream": lambda aside: nullcontext(),
        "CUDAGraph": Graph,
        "graph": graph,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(tensors, "_aside", lambda device: stream)
    total, seen = torch.zeros(2), list[torch.Tensor]()

    def step(given: torch.Tensor) -> None:
        seen.append(given)
        total.add_(given)

    take = Recorded(step, torch.device("cuda"))
    for number in range(1, 8):
        take(torch.full((2,), float(number)))
        assert total.tolist() == [number * (number + 1) / 2] * 2
    assert len(recordings) == 1 and recordings[0].replays == 4
