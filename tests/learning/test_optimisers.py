from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from pate_fed.learning import optimisers

NAMES = [("Adam", {}), ("Adam", {"weight_decay": 1e-2}), ("AdamW", {"weight_decay": 1e-2})]
NAMES += [("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4})]
WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def _learn(made: Any, options: dict[str, Any]) -> Tensor:
    """Four steps, with a state saved and read between."""
    torch.default_generator.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    optimiser = made(model.parameters(), lr=0.1, **options)
    for step in range(4):
        model(torch.ones(2, 5)).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=step % 2 == 0)
        optimiser.load_state_dict(optimiser.state_dict())
    return model.weight.detach()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("name", "options"), NAMES)
def test_the_steps_are_those_of_pytorch(name: str, options: dict[str, Any], fused: bool) -> None:
    ours, theirs = (_learn(getattr(of, name), options | {"fused": fused}) for of in (optimisers, torch.optim))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("name", "options"), NAMES)
def test_no_compiler_is_imported(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for method in WRAPPED:  # what earlier uses in this process left
        function = inspect.unwrap(getattr(torch.optim.Optimizer, method))
        monkeypatch.delattr(function, "__dynamo_disable", raising=False)
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    with pytest.raises(ImportError):
        _learn(getattr(torch.optim, name), options)
    _learn(getattr(optimisers, name), options)
