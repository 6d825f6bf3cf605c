"""Private labels as text, and what the room needs to be imported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pate_fed.format import epsilon_text
from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster
from pate_fed.privacy import SeededNoise


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [(3.0, "3"), (0.1, "0.1"), (0.99991, "1"), (0.99981, "1"), (1.00001, "1.001"), (1e-9, "1e-9")],
)
def test_what_is_shown_of_an_epsilon_is_never_less(epsilon: float, shown: str) -> None:
    assert epsilon_text(epsilon) == shown and float(shown) >= epsilon
    labels = NoiseCluster(num_clusters=2, num_classes=2, epsilon=1.0, delta=1e-5).release(
        [0, 1], [0, 1], SeededNoise(0)
    )
    assert f"ε={shown} δ=1e-5" in replace(labels, epsilon=epsilon).text()


def test_the_room_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "for name in ('torch', 'torchvision', 'flwr', 'opendp', 'sklearn'): sys.modules[name] = None\n"
        "import pate_fed.kinds.label_dp as room\n"
        "assert all(hasattr(room, name) for name in room.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
