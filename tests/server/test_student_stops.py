"""A student that stops early ends its phase with a word, and its report shows what ended it."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pate_fed.data import GlyphSettings, load_dataset
from pate_fed.learning import StudentSettings
from pate_fed.report import Epoch, Samples, make_progress
from pate_fed.report.curves import learning_curves
from pate_fed.study import Data, Study
from server.learning import Learner


class Log:
    """Keeps the epochs that a run's log would have."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []

    def write(self, event: object) -> None:
        assert not isinstance(event, Samples)
        assert isinstance(event, Epoch)
        self.epochs.append(event)


@pytest.mark.parametrize("patience", [1, None])
def test_fewer_epochs_than_announced_are_explained(tmp_path: Path, patience: int | None) -> None:
    glyph = GlyphSettings(classes=3, private=60, public=120)
    student = StudentSettings(
        name="supervised", epochs=12, patience=patience, held_out=0.3, learning_rate=1e-6
    )
    study = Study(data=Data(glyph=glyph), student=student).resolve()
    dataset = load_dataset("glyph", glyph=glyph, cache_dir=tmp_path)
    log, screen = Log(), io.StringIO()
    learner = Learner(
        study,
        dataset,
        log=log,  # type: ignore[arg-type]
        progress=make_progress(False, screen),
        stop=threading.Event(),
        path=tmp_path / "student.pt",
    )
    index = np.arange(60)
    learner.learn(index, np.asarray(dataset.public_labels[index]))
    said = f"learning: {len(log.epochs)}/12 in"
    assert said in screen.getvalue()
    assert ("ended early" in screen.getvalue()) == (len(log.epochs) < 12) == (patience is not None)
    shown = [each.values.get("held_out_share") for each in log.epochs]
    assert (None in shown) == (patience is None)
    figures = str(learning_curves(SimpleNamespace(epochs=log.epochs)))  # type: ignore[arg-type]
    assert ("held out share" in figures) == (patience is not None)
