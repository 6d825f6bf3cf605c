"""Learning from private labels where features are public: mechanisms and learning.

Tang, Nasr, Mahloujifar, Shejwalkar, Song, Houmansadr and Mittal, "Machine learning with differentially
private labels" (PoPETs 2022), cited as LDP. Mechanisms and their accounting need NumPy and SciPy only;
whatever needs torch is loaded when it is first asked for.

Begin with `methods.py`, which lists the methods, and `release.py`, what leaves a mechanism.
"""

from __future__ import annotations

from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster, label_counts
from pate_fed.kinds.label_dp.randres import Alibi, PriorRes, RandRes
from pate_fed.kinds.label_dp.release import PrivateLabels, label_accuracy

__all__ = ["Alibi", "NoiseCluster", "PriorRes", "PrivateLabels", "RandRes", "label_accuracy", "label_counts"]
