"""Hospitals with private labels, asked over Flower's messages: on this machine, or processes of their own.

What one sends is noisy, and masked where it is summed. `HospitalLabels` is the source of labels that a method
asks; either party's app is handed in by the command, as the coordinator imports no hospital.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.backend import PROCESSES
from pate_fed.errors import InputError
from pate_fed.flower import prepare_environment
from pate_fed.format import epsilon_text
from pate_fed.kinds.label_dp.federation import summed_labels
from pate_fed.kinds.label_dp.release import PrivateLabels
from pate_fed.kinds.label_dp.source import Record, Released
from pate_fed.kinds.labels import LabelTerms, PublicClusters, PublicPool, label_terms
from pate_fed.privacy.ledger.terms import LedgerTerms
from pate_fed.privacy.mechanisms.noise import NoiseSource, noise_from_seed
from pate_fed.privacy.protection import LABEL, QUORUM
from pate_fed.report.log import Waiting
from pate_fed.report.terminal import Progress, make_progress
from pate_fed.runtime.run_dir import simulated_disks
from pate_fed.runtime.signals import interruptible, raise_if
from pate_fed.structure.faults import Fault, telling_of_parties
from server.shutdown import TELL_S

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from pate_fed.runtime.host import Host
    from server.labels import Collected, LabelCoordinator

Ints = NDArray[np.int64]

_SITE = "PATE_FED_SITE"
_CLEARLY = 0.9  # of the asked ε: what is spent below that is said


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedHospitals:
    """Hospitals played on this machine, each with a disk of its own, by the code that a real one runs.

    `parts` are the places of each hospital's records, int64 (n_i,), `labels` int64 (n,) all true ones, which
    are only dealt out. `policy` is a policy.toml that each of them has; `client_app` makes their side's app.
    """

    state_dir: ClassVar[Path | None] = (
        None  # what a coordinator could go on from: these disks go with the run
    )
    parts: tuple[Ints, ...] = field(repr=False)
    labels: Ints = field(repr=False)
    client_app: Callable[[], ClientApp]
    backend: str = "inline"
    policy: Path | None = None

    @property
    def count(self) -> int:
        """How many hospitals there are."""
        return len(self.parts)

    def run(self, server_app: ServerApp, coordinator: LabelCoordinator, stop: threading.Event) -> None:
        """Deal the labels out, and run both sides on the backend."""
        from pate_fed.flower.engine import run_apps

        with (
            simulated_disks() as folder,
            self._dealt(folder),
            telling_of_parties(folder, coordinator.note_faults),
        ):
            run_apps(server_app, self.client_app, backend=self.backend, num_nodes=self.count, folder=folder)

    @contextmanager
    def _dealt(self, folder: Path) -> Iterator[None]:
        """Each hospital's own folder with its own labels, where its side finds it."""
        for number, part in enumerate(self.parts):
            own = folder / f"hospital-{number}"
            own.mkdir(mode=0o700, exist_ok=True)
            rows = "".join(f"{index},{label}\n" for index, label in zip(part, self.labels[part], strict=True))
            (own / "labels.csv").write_text(f"index,label\n{rows}", encoding="utf-8")
            if self.policy is not None:
                shutil.copy(self.policy, own / "policy.toml")
        before = os.environ.get(_SITE)
        os.environ[_SITE] = str(folder)
        try:
            yield
        finally:
            del os.environ[_SITE]
            if before is not None:
                os.environ[_SITE] = before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeparateHospitals:
    """Hospitals with processes of their own, `python -m pate_fed.client`, that connect to `host`.

    `run_dir` holds the SuperLink's state, and what a coordinator goes on from. Without a host only terms can
    be made.
    """

    backend: ClassVar[str] = PROCESSES
    labels: ClassVar[None] = None  # they are at the hospitals
    count: int
    host: Host | None
    run_dir: Path

    @property
    def state_dir(self) -> Path | None:
        """Where a coordinator keeps what another process goes on from: keys, roster, sum of counts."""
        return self.run_dir / "secure_sum"

    def run(self, server_app: ServerApp, coordinator: LabelCoordinator, stop: threading.Event) -> None:
        """Wait for the hospitals, and run the study with those that came.

        Raises:
            InputError: there is no host, or its keys were made for another study.
        """
        if self.host is None:
            raise InputError("no address is given that hospitals can connect to")
        from pate_fed.flower.compat import quiet_flower

        self.host.require_terms(coordinator.terms_digest)
        host, folder = self.host, self.run_dir / "flower"
        if not coordinator.needs_hospitals:  # those that still wait are told how it ended
            host = replace(host, wait_s=min(host.wait_s, TELL_S))
        with quiet_flower():
            host.serve(server_app, coordinator, folder=folder, hospitals=self.count, stop=stop)


Place = SimulatedHospitals | SeparateHospitals
"""Where hospitals are, and how a study reaches them."""


@dataclass(slots=True, kw_only=True, eq=False)
class HospitalLabels:
    """Labels of a public pool that are at hospitals; a `LabelSource`.

    At least the share `quorum` of the hospitals must answer. With a `seed` simulated hospitals' noise is
    seeded and protects nobody. `waiting` is told who has not answered yet, `fault` what went wrong at
    simulated hospitals; it says in which log that is. `terms`, `answered` and `left_out`
    are of the last study: who was left out of it, and why. `restored`: its counts were there already;
    `spent`: something may have left them; `answered` is None where its release was on record already, and
    nobody was asked.

    Raises:
        InputError: a share that is none.
    """

    place: Place
    pool: PublicPool
    quorum: float = QUORUM
    seed: int | None = None
    progress: Progress = field(default_factory=lambda: make_progress(quiet=True))
    record: Record = field(default_factory=Record)
    waiting: Callable[[Waiting], None] = lambda event: None
    fault: Callable[[Fault], Path | None] = lambda event: None
    terms: LabelTerms | None = None
    answered: int | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    restored: bool = False
    spent: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.quorum <= 1:
            raise InputError(f"--quorum {self.quorum}: a share above 0 and at most 1 is meant")

    @property
    def truth(self) -> Ints | None:
        """All true labels where a simulation has them."""
        return self.place.labels

    @property
    def sigma(self) -> float | None:
        """The noise in the last study's sum, in labels; None where nothing was summed, or nobody asked."""
        share = None if self.terms is None else self.terms.sigma_party
        return None if share is None or self.answered is None else share * self.answered**0.5

    @property
    def noise(self) -> NoiseSource:
        """Of the kind that the hospitals have; it breaks ties."""
        return noise_from_seed(self.seed)

    def make_terms(self, *, epsilon: float, clusters: PublicClusters | None = None) -> LabelTerms:
        """What hospitals are asked to agree to: randomised response or, with clusters, counts under masks.

        Raises:
            InputError: a value out of range.
        """
        return label_terms(
            self.pool,
            num_clients=self.place.count,
            quorum=self.quorum,
            epsilon=epsilon,
            seed=self.seed,
            clusters=clusters,
        )

    def spendable(self, epsilon: float, delta: float) -> float:
        """How much of ε counts under masks spend; clearly less only where least shares of noise are more.

        The number of clusters has no part in it.

        Raises:
            InputError: too few hospitals, or a budget out of range.
        """
        place = np.zeros(self.pool.size, dtype=np.int64)
        clusters = PublicClusters(place=place, count=self.pool.num_classes, delta=delta)
        terms = self.make_terms(epsilon=epsilon, clusters=clusters)
        return terms.spent if terms.spent < _CLEARLY * epsilon else epsilon

    def respond(self, epsilon: float) -> PrivateLabels:
        """Labels after randomised response at each hospital, -1 where one is left out.

        Raises:
            InputError: ε out of range.
            QuorumError: too few hospitals answered.
        """
        terms = self.make_terms(epsilon=epsilon)
        released = self._release(terms, lambda: self._ask(terms, None).label)
        at = "hospitals" if self.answered is None else f"{self.answered} hospitals"
        labels = PrivateLabels.by(terms, released.label, self.noise)
        return replace(labels, how=labels.how.replace("response", f"response at {at}"))

    def count(self, clusters: Ints, num_clusters: int, *, epsilon: float, delta: float) -> PrivateLabels:
        """Labels of all inputs from the hospitals' noisy counts in public clusters, summed under masks.

        Shapes: `clusters` int64 (n,).

        Raises:
            InputError: fewer clusters than classes, too few hospitals, or a budget out of range.
            QuorumError: too few hospitals are in the sum.
        """
        public = PublicClusters(place=clusters, count=num_clusters, delta=delta)
        terms = self.make_terms(epsilon=epsilon, clusters=public)

        def draw() -> Ints:
            found = self._ask(terms, clusters)
            if found.totals is None:
                raise RuntimeError("the coordinator came to its end without a sum")
            return summed_labels(terms.counts, found.totals, clusters, self.noise, survivors=found.hospitals)

        released = self._release(terms, draw)
        return PrivateLabels.by(terms, released.label, self.noise)

    def _release(self, terms: LabelTerms, draw: Callable[[], Ints]) -> Released:
        noise, self.terms, self.answered, self.spent = self.noise, terms, None, True
        ledger_terms = LedgerTerms(
            study_digest=terms.digest,
            delta=terms.delta,
            mechanisms=(terms.on_ledger,),
            protection=LABEL,
            noise=noise.kind,
            private=noise.private,
            coordinator=terms.seen,
            most_asked=terms.pool_size,
            most_answered=terms.pool_size,
        )
        return self.record.release(ledger_terms, lambda: Released.of_all(draw()))

    def _ask(self, terms: LabelTerms, clusters: Ints | None) -> Collected:
        prepare_environment()
        from server.labels import LabelCoordinator

        stop = threading.Event()
        coordinator = LabelCoordinator(
            terms,
            clusters=clusters,
            backend=self.place.backend,
            progress=self.progress,
            stop=stop,
            folder=self.place.state_dir,
            waiting=self.waiting,
            fault=self.fault,
        )
        with interruptible(stop, note="labels or counts that have come count as spent"):
            try:
                return coordinator.run(lambda app: self.place.run(app, coordinator, stop))
            finally:
                found, self.spent = coordinator.found, coordinator.spent
                self.answered, self.left_out = found.hospitals, tuple(found.left_out)
                self.restored = found.restored
                raise_if(stop)  # Ctrl-C ended the study first, so that the engine ended in order

    def to_dict(self) -> dict[str, Any]:
        """The last study's facts for metrics.json; all of them are public."""
        terms = self.terms
        if terms is None:
            return {}
        return {
            "asked": terms.num_clients,
            "answered": self.answered,
            "least": terms.least_clients,
            "left_out": [{"hospital": who, "reason": why} for who, why in self.left_out],
            "kept": self.restored,
            "backend": self.place.backend,
            "coordinator": {
                "epsilon": terms.spent if self.spent else 0.0,
                "delta": terms.delta,
                "sees": terms.seen.text() if self.spent else "nothing",
            },
            "sigma_party": terms.sigma_party,
            "colluders": terms.colluders if terms.secure_sum else None,
            "terms_digest": terms.digest,
            "terms": json.loads(terms.to_json()),
        }

    def lines(self) -> list[str]:
        """The same as text."""
        terms = self.terms
        if terms is None:
            return []
        told = f"{self.answered} of {terms.num_clients} answered, {terms.least_clients} were needed"
        if self.answered is None:
            told = "what they released is on the ledger: nobody was asked again"
        lines = [f"hospitals: {told}; the coordinator saw {terms.seen.text()}"]
        if self.restored:
            lines.append(
                f"their counts were summed before and kept in {self.place.state_dir}: nobody was asked again"
            )
        if terms.spent < _CLEARLY * terms.epsilon:
            lines.append(
                f"more noise than asked for: of ε {terms.epsilon:g} only {epsilon_text(terms.spent)} is "
                f"spent, since each of {terms.num_clients} hospitals adds at least {terms.sigma_party:.3g} "
                "labels to every count, and that costs accuracy; fewer hospitals in one sum would spend more"
                " of it"
            )
        return lines
