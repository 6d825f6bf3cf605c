"""Before any data: the noise, the threshold and the labels that a budget buys, and what noise gives an ε."""

from scipy.optimize import brentq

from pate_fed import plan
from pate_fed.privacy import Accountant, GNMax

print(plan(num_teachers=250, num_classes=10, epsilon=2, delta=1e-5).best)


def above(sigma: float) -> float:
    """By how much 400 labels under Gaussian noise of so many votes pass ε = 2."""
    accountant = Accountant()
    accountant.spend(GNMax(classes=10, sigma=sigma), queries=400)
    return accountant.epsilon(1e-5) - 2


print(f"400 labels at ε = 2 want noise of {brentq(above, 30, 80, xtol=0.5):.0f} votes")
