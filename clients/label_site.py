"""Where a hospital's own labels of public inputs are, and its policy about them.

Its labels are a file with the columns index and label: the places of its records among the study's public
inputs, and their classes from 0. A simulated hospital has such a file, and a policy.toml if it has a policy,
in its own folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.policy import Agreement, Policy
from clients.site import BaseSite, Objection, find_site
from clients.site_files import LocalSettings
from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.release import check_labels
from pate_fed.kinds.labels import LabelTerms
from pate_fed.privacy import NoiseSource, noise_from_seed

LABELS_FILE = "labels.csv"
POLICY_FILE = "policy.toml"
HEADER = "index,label"

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSite(BaseSite):
    """One hospital's own settings in studies of private labels."""

    @property
    def labels(self) -> Path:
        """The file of its labels."""
        return self.state_dir / LABELS_FILE if self.settings is None else Path(self.settings.data)

    @property
    def policy(self) -> Policy | None:
        """Its policy, read anew; None where a simulated hospital has none in its folder."""
        if self.settings is not None:
            return Policy.load(self.settings.policy)
        path = self.state_dir / POLICY_FILE
        return Policy.load(path) if path.exists() else None

    def objection(self, terms: Agreement) -> Objection | None:
        """Also more than the policy answers in a day: what answers about labels is one request."""
        return BaseSite.objection(self, terms) or self.refuses_more(
            answered=0, today=0, asked=terms.max_queries
        )

    def noise(self, terms: LabelTerms) -> NoiseSource:
        """The system's source; only a simulated hospital's may be seeded."""
        return terms.hospital_noise(self.number) if self.simulated else noise_from_seed(None)


def read_label_site(node_config: Mapping[str, object]) -> LabelSite:
    """The site of this hospital in studies of private labels.

    Raises:
        InputError: nothing says where it is.
    """
    found = find_site(node_config)
    if isinstance(found, LocalSettings):
        return LabelSite(
            party=found.hospital, number=0, state_dir=found.state_dir, simulated=False, settings=found
        )
    path, number = found
    folder = path / f"hospital-{number}"
    return LabelSite(party=folder.name, number=number, state_dir=folder, simulated=True)


def read_own_labels(path: Path, *, pool_size: int, num_classes: int) -> tuple[Ints, Ints]:
    """A hospital's records: their places among the public inputs and their classes, int64 (n,) each.

    They are in the order of the places: places leave the house, and the file's own order may tell classes.

    Raises:
        InputError: no such table, a record twice or outside the inputs, or a label outside the classes. The
            message shows no label.
    """
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        cells = [[int(cell) for cell in line.split(",")] for line in lines]
        table = np.array(cells, dtype=np.int64).reshape(len(lines), -1)
        sound = header.strip() == HEADER and table.shape[1:] == (2,)
    except (OSError, ValueError, OverflowError):  # its text would show what stands in the file
        sound = False
    if not sound:
        raise InputError(f"{path}: a table of whole numbers with the columns {HEADER} is meant")
    index, label = table[np.argsort(table[:, 0], kind="stable")].T
    if index.min() < 0 or index.max() >= pool_size or len(np.unique(index)) != len(index):
        raise InputError(
            f"{path}: every index must be there once, and be from 0 to {pool_size - 1}, as there are so many "
            "public inputs"
        )
    return index, check_labels(label, num_classes)
