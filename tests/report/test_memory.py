"""Peak memory is that of this process and its children."""

from __future__ import annotations

from server.app import PeakMemory, watch_memory


def test_the_peak_is_seen_also_in_a_short_block() -> None:
    assert PeakMemory().megabytes is None  # nothing was sampled
    with watch_memory(every_s=0.01) as peak:
        pass
    assert peak.megabytes is not None and peak.megabytes > 1
