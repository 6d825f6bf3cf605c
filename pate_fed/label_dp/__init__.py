"""Learning from private labels where features are public: mechanisms, clusters and learning.

Tang, Nasr, Mahloujifar, Shejwalkar, Song, Houmansadr and Mittal, "Machine learning with differentially
private labels" (PoPETs 2022), cited as LDP. Mechanisms and their accounting need NumPy and SciPy only;
whatever needs torch is loaded when it is first asked for.
"""
