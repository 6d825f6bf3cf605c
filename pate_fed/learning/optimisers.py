"""PyTorch's optimisers without the import of its compiler, which each would load at its first use.

The compiler (`torch._dynamo`) takes 1.4 s to import, more than a light training takes, and nothing here is
compiled. The functions underneath PyTorch's wrappers are the same, and so is every number.
"""

from __future__ import annotations

import inspect

import torch


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
