"""With a Flower that only simulates, tests of what is bound to the other line's inside are not collected."""

from __future__ import annotations

from pate_fed.flower.transport import has_transport

collect_ignore = [] if has_transport() else ["test_guard.py", "test_line_1_39.py"]
