"""AugDescent: which labels are clean, and what is said where a loss is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pate_fed.errors import PateFedError
from pate_fed.kinds.label_dp.aug_descent import DescentSettings, _Descent, aug_descent, clean_chances
from pate_fed.kinds.label_dp.learners import LearnSettings
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.learning import optimisers
from pate_fed.learning.students.fixmatch import FixMatch


def test_clean_losses_are_told_from_wrong_ones() -> None:
    rng = np.random.default_rng(0)
    losses = np.concatenate([rng.normal(0.2, 0.05, 300), rng.normal(0.8, 0.08, 700)])
    chances = clean_chances(losses)
    assert (chances[:300] > 0.5).mean() > 0.98 and (chances[300:] < 0.5).mean() > 0.98
    assert clean_chances(np.full(5, 0.3)).tolist() == [1.0] * 5


def test_aug_descent_names_the_epoch_in_which_a_loss_is_lost(
    public: PublicInputs, truth: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong in the very last step is seen too."""
    settings = DescentSettings(learn=LearnSettings(epochs=3, batch_size=200), warm_up=2)
    step, steps = optimisers.Adam.step, iter(range(10**6))

    def breaks(optimiser: optimisers.Adam, *rest: Any) -> Any:
        found = step(optimiser, *rest)
        if next(steps) == last:
            with torch.no_grad():
                optimiser.param_groups[0]["params"][-1].fill_(torch.nan)
        return found

    last = -1
    monkeypatch.setattr(optimisers.Adam, "step", breaks)
    aug_descent(public, truth, settings, seed=0)
    last, steps = next(steps) - 1, iter(range(10**6))
    with pytest.raises(PateFedError, match="AugDescent loss of the labels is nan in epoch 3"):
        aug_descent(public, truth, settings, seed=0)


@pytest.mark.parametrize("sgd", [True, False])
def test_both_learners_take_the_same_steps(public: PublicInputs, truth: np.ndarray, sgd: bool) -> None:
    learn = LearnSettings(epochs=2, sgd=sgd)
    pair = [public.network() for _ in range(2)]
    there = np.arange(600)
    descent = _Descent(public, pair, there, truth, DescentSettings(learn=learn))
    alone = FixMatch(learn.student(), public.network(), public.views(), sgd=sgd)
    for optimiser in descent.optimisers:
        assert type(optimiser) is type(alone.optimisers[0])
        assert optimiser.defaults == alone.optimisers[0].defaults and optimiser.defaults["fused"]
