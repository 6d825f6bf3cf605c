"""Simulated parties on a node of a cluster: what is sent there, and the ClientApp that plays them with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clients.site import simulated_site, take_data
from clients.site_files import SITE_VARIABLE, SimulatedSites
from pate_fed.config.data import data_digest
from pate_fed.data import Dataset
from pate_fed.disk import write_private
from pate_fed.errors import InputError
from pate_fed.learning import TABLE_TEACHERS

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

_SITE = "site.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentStudy:
    """A study as it is sent to nodes: its study.toml, digests of its data and of who has which of them.

    `files` are Python files of the user's own, by their paths from the folder that is searched last.
    `together` is as in `SimulatedSites`.
    """

    study: str
    data: str
    records: str
    files: Mapping[str, bytes]
    together: int


def data_to_send(dataset: Dataset) -> Dataset:
    """The data with plain arrays in place of memory maps: a node's processes then share one copy of them."""
    return replace(
        dataset,
        private_images=np.asarray(dataset.private_images),
        private_labels=np.asarray(dataset.private_labels),
        public_images=np.asarray(dataset.public_images),
        public_labels=np.asarray(dataset.public_labels),
    )


def disk_of(folder: Path, number: int) -> Path:
    """Where the disk of the party of that number lies, once its study is played in `folder`."""
    return simulated_site(folder / _SITE, number).state_dir


def play_parties(folder: Path, sent: SentStudy, dataset: Dataset) -> ClientApp:
    """The app of all parties of a study, whose disks lie in `folder` of this node.

    Raises:
        InputError: the data are not those that were sent, or would be dealt otherwise than there; or the
            device is not here.
    """
    if data_digest(dataset) != sent.data:
        raise InputError("the data that came are not those that were sent")
    own = Path(folder, "own-code")
    for name, content in sent.files.items():
        path = own / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, content, durable=False)
    study, site = folder / "study.toml", folder / _SITE
    write_private(study, sent.study.encode(), durable=False)
    SimulatedSites(
        study=study,
        state_dir=folder,
        parts=own,
        records=sent.records,
        goes_on=True,
        together=sent.together,
    ).write(site)
    os.environ[SITE_VARIABLE] = str(site)
    take_data(site, dataset)
    held = simulated_site(site, 0).study
    if held.teacher.name not in TABLE_TEACHERS:
        from pate_fed.learning.device import resolve_device

        resolve_device(held.engine.device)  # loads PyTorch, too, while other nodes still start
    from clients.app import app

    return app
