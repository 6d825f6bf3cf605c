"""Where a hospital's own labels of public inputs are, and its policy about them.

Its labels are a file with the columns index and label: the places of its records among the study's public
inputs, and their classes from 0. A simulated hospital has such a file, and a policy.toml if it has a policy,
in its own folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.local import LocalSettings
from clients.policy import Policy
from clients.site import LOCAL_SITE, SITE_VARIABLE
from pate_fed.errors import InputError
from pate_fed.label_dp.release import check_labels
from pate_fed.privacy import NoiseSource, noise_from_seed
from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.messages import Refusal
from pate_fed.secure_sum import Demands

__all__ = ["HEADER", "LABELS_FILE", "LabelSite", "read_label_site", "read_own_labels"]

LABELS_FILE = "labels.csv"
POLICY_FILE = "policy.toml"
HEADER = "index,label"

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSite:
    """One hospital's own settings in studies of private labels. Whatever is here stays here.

    `number` seeds a simulated hospital's noise where the study is seeded; `policy` is None where it minds
    nothing. `terms_digest` names the terms that it was admitted to; None: any.
    """

    party: str
    number: int
    labels: Path
    state_dir: Path
    simulated: bool
    policy: Policy | None
    sum_key: Path | None = None
    terms_digest: str | None = None

    def objection(self, terms: LabelTerms) -> tuple[Refusal, str] | None:
        """Why this hospital does not take part, with a sentence for its own log; or None."""
        if self.terms_digest not in (None, terms.digest):
            return Refusal.TERMS, "this hospital was admitted to another study"
        if self.policy is None:
            return None
        # A day's limit holds too: what answers about labels is one request.
        return self.policy.objection(terms) or self.policy.refuses_more(
            answered=0, today=0, asked=terms.max_queries
        )

    def demands(self, terms: LabelTerms) -> Demands:
        """What it demands of those with whom it sums its counts."""
        if self.policy is None:
            return Demands(least_voters=terms.least_clients)
        return self.policy.demands(terms)

    def noise(self, terms: LabelTerms) -> NoiseSource:
        """The system's source; only a simulated hospital's may be seeded."""
        return terms.hospital_noise(self.number) if self.simulated else noise_from_seed(None)


def read_label_site(node_config: Mapping[str, object]) -> LabelSite:
    """The site of this hospital.

    Raises:
        InputError: no site file or folder is named, the party's number is missing, or the policy is wrong.
    """
    path, number = os.environ.get(SITE_VARIABLE), node_config.get("partition-id")
    if path is not None and Path(path).name == LOCAL_SITE:
        own = LocalSettings.read(Path(path))
        return LabelSite(
            party=own.hospital,
            number=0,
            labels=Path(own.data),
            state_dir=own.state_dir,
            simulated=False,
            policy=Policy.load(own.policy),
            sum_key=own.sum_key,
            terms_digest=own.terms_digest,
        )
    if path is None or not isinstance(number, int):
        raise InputError(f"{SITE_VARIABLE} and partition-id say where a party's data are; one is missing")
    folder = Path(path) / f"hospital-{number}"
    policy = folder / POLICY_FILE
    return LabelSite(
        party=folder.name,
        number=number,
        labels=folder / LABELS_FILE,
        state_dir=folder,
        simulated=True,
        policy=Policy.load(policy) if policy.exists() else None,
    )


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
