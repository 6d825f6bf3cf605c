"""A run for TensorBoard, read by its own library."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.cli.main import main


def test_tensorboard_reads_what_was_written(made_up: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["export", str(made_up), "--tensorboard", str(tmp_path)]) == 0
    held = EventAccumulator(str(tmp_path))
    held.Reload()
    assert len(held.Scalars("student/test_accuracy")) == 8
    assert [each.step for each in held.Scalars("privacy/epsilon_over_queries")] == [75, 150]
    assert not any("do_not_publish" in tag for tag in held.Tags()["scalars"])
