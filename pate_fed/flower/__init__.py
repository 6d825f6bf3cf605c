"""The only room that knows flwr: environment, records, the in-process grid, and launching.

Import nothing of flwr before `prepare_environment` has run: Flower and Ray read their switches at import.
"""

import pate_fed.runtime.isolation  # noqa: F401  # first, for `python -m pate_fed.flower.child`

# isort: split
from pate_fed.flower.environment import prepare_environment

__all__ = ["prepare_environment"]
