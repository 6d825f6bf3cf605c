"""The only room that knows Flower and Ray: environment, processes, messages, and the guard of the port.

Import nothing of flwr before `prepare_environment` has run: Flower and Ray read their switches at import.

Begin with `engine.py`, which plays a simulation, and `processes.py`, which starts a SuperLink or a SuperNode.
`guard.py` stands between a stranger and the coordinator; `credentials.py` holds certificates and keys to one
another. `cluster.py` and `cluster_grid.py` are for a Ray cluster: who is let in, and who plays where.
"""

import pate_fed.runtime.isolation  # noqa: F401  # first, for `python -m pate_fed.flower.child`

# isort: split
from pate_fed.flower.environment import prepare_environment

__all__ = ["prepare_environment"]
