"""Labels as the default study releases them, for measurements of its student."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.sections import Aggregation
from pate_fed.data import Dataset
from pate_fed.learning import TeacherSettings
from pate_fed.privacy import ConfidentGNMax
from pate_fed.reproduce.driver import Log, Reproduction
from pate_fed.reproduce.measures import ReleasedLabels, release_labels
from pate_fed.reproduce.votes import authors_totals, ensemble_size, teachers_totals

Ints = NDArray[np.int64]
LABELS = 500


def totals_of(plan: Reproduction, dataset: Dataset, log: Log) -> Ints:
    """Totals of 250 teachers on the queries: light ones here, the authors' on MNIST."""
    if dataset.name == "mnist":
        return authors_totals(plan, dataset)
    teacher = TeacherSettings().name
    path = plan.out_dir / f"totals-{dataset.name}-{teacher}.npz"
    return teachers_totals(plan, dataset, path, teacher=teacher, log=log)


def labels_of(totals: Ints, seed: int) -> ReleasedLabels:
    """Labels as the default study releases them, with seeded noise."""
    size = ensemble_size(totals)
    threshold, sigma1, sigma2 = Aggregation().resolve(size["num_teachers"]).fixed()
    mechanism = ConfidentGNMax(**size, threshold=threshold, sigma1=sigma1, sigma2=sigma2)
    return release_labels(mechanism, totals, seed=seed, labels=LABELS)
