"""The data of a study: a known data set, or the files that the study names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pate_fed.config.study import Study
from pate_fed.data import Dataset, dataset_from_files, load_dataset

__all__ = ["load_study_data"]


def load_study_data(study: Study, on_progress: Callable[[int, int], None] | None = None) -> Dataset:
    """Everything that a coordinator or a simulation has of a study's data.

    Raises:
        InputError: the data are not there or cannot be used.
    """
    data = study.data
    if data.from_files and data.pool is not None:
        return dataset_from_files(
            Path(data.pool).stem,
            pool=Path(data.pool),
            private=[Path(name) for name in data.private],
            spec=data.kind(),
            num_queries=data.num_queries,
            keep_more=not study.cross_validates,
        )
    folder = None if data.data_dir is None else Path(data.data_dir)
    return load_dataset(
        data.dataset, glyph=data.glyph, data_dir=folder, download=data.download, on_progress=on_progress
    )
