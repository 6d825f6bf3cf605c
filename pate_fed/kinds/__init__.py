"""Kinds of question that a study can ask, each with its terms, cost and words; and the terms of a study.

Begin with `terms.py`: what hospitals agree to, and what follows from it before the first message. `base.py`
is what every kind says of itself, `votes.py`, `sums.py`, `labels.py` and `own.py` are the kinds. `make.py`
makes terms of a study and its public pool. How a hospital answers stands in `clients/kinds/`, what is asked
and released in `server/kinds/`.
"""

from __future__ import annotations
