"""Hospitals with private labels, asked over Flower's messages: on this machine, or processes of their own.

What one sends is noisy, and masked where it is summed.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.sections import PROCESSES
from pate_fed.config.trust import LEAST_PARTIES, QUORUM
from pate_fed.errors import InputError
from pate_fed.format import epsilon_text
from pate_fed.label_dp.randres import RandRes
from pate_fed.label_dp.release import PrivateLabels
from pate_fed.privacy.mechanisms.noise import noise_from_seed
from pate_fed.protocol.label_terms import LabelTerms, few_hospitals, label_terms
from pate_fed.runtime.run_dir import simulated_disks
from pate_fed.runtime.signals import interruptible, raise_if

if TYPE_CHECKING:
    from pate_fed.label_dp.methods import MethodSettings
    from pate_fed.label_dp.public import PublicInputs
    from pate_fed.report import Progress
    from pate_fed.runtime.host import Host

__all__ = ["BACKENDS", "Hospitals", "Place", "Separate", "Simulated"]

Ints = NDArray[np.int64]

BACKENDS = ("inline", "ray")
_SITE = "PATE_FED_SITE"
_CLEARLY = 0.9  # of the asked ε: what is spent below that is said
_TELL_S = 90.0  # hospitals that are only told how a study ended have so long to connect again


class Place(Protocol):
    """Where hospitals are, and how a study reaches them."""

    @property
    def count(self) -> int:
        """How many hospitals there are."""

    @property
    def backend(self) -> str:
        """The engine's name."""

    def check(self) -> None:
        """Refuse, before any work, what cannot come to a good end."""

    @property
    def kept(self) -> Path | None:
        """Where a coordinator keeps what another process goes on from; None where hospitals end with it."""

    def run(self, server_app: Any, coordinator: Any, stop: threading.Event) -> None:
        """Run the coordinator's app with all hospitals, until its main has ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulated:
    """Hospitals played on this machine, each with a disk of its own, by the code that a real one runs.

    `parts` are the places of each hospital's records, int64 (n_i,), `labels` int64 (n,) all true ones, which
    are only dealt out. `policy` is a policy.toml that each of them has.

    Raises:
        InputError: an unknown backend.
    """

    parts: tuple[Ints, ...] = field(repr=False)
    labels: Ints = field(repr=False)
    backend: str = "inline"
    policy: Path | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InputError(f"--backend {self.backend}: one of {', '.join(BACKENDS)} is meant")

    @property
    def count(self) -> int:
        """How many hospitals there are."""
        return len(self.parts)

    @property
    def kept(self) -> None:
        """Nothing: these hospitals' disks are gone with the run."""

    def check(self) -> None:
        """Read the policy.

        Raises:
            InputError: it is none.
        """
        if self.policy is not None:
            importlib.import_module("clients.policy").Policy.load(self.policy)

    def run(self, server_app: Any, coordinator: Any, stop: threading.Event) -> None:
        """Deal the labels out, and run both sides on the backend."""
        from pate_fed.flower.engine import run_apps

        with simulated_disks() as folder, self._dealt(folder):
            run_apps(
                server_app,
                lambda: importlib.import_module("clients.app").app,
                backend=self.backend,
                num_nodes=self.count,
                folder=folder,
            )

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
class Separate:
    """Hospitals with processes of their own, `python -m pate_fed.client`, that connect to `host`.

    `folder` holds the SuperLink's state, and beside it lies what a coordinator goes on from. Without a host
    only terms can be made.
    """

    count: int
    host: Host | None
    folder: Path

    @property
    def backend(self) -> str:
        """The engine's name."""
        return PROCESSES

    @property
    def kept(self) -> Path:
        """Keys, roster and sum of counts under masks."""
        return self.folder.with_name("secure_sum")

    def check(self) -> None:
        """Nothing to check: the host was."""

    def run(self, server_app: Any, coordinator: Any, stop: threading.Event) -> None:
        """Wait for the hospitals, and run the study with those that came.

        Raises:
            InputError: there is no host, or its keys were made for another study.
        """
        if self.host is None:
            raise InputError("no address is given that hospitals can connect to")
        from pate_fed.flower.compat import quiet_flower

        self.host.require_terms(coordinator.terms_digest)
        host = self.host
        if not coordinator.needs_hospitals:  # those that still wait are told how it ended
            host = replace(host, wait_s=min(host.wait_s, _TELL_S))
        with quiet_flower():
            host.serve(server_app, coordinator, folder=self.folder, hospitals=self.count, stop=stop)


@dataclass(slots=True, kw_only=True, eq=False)
class Hospitals:
    """Labels of `pool_size` public inputs that are not in one place.

    At least the share `quorum` of the hospitals must answer. With a `seed` simulated hospitals' noise is
    seeded and protects nobody. `terms`, `answered` and `left_out` are of the last study: who was left out of
    it, and why; `kept` tells that its counts were there already, `spent` that something may have left them.

    Raises:
        InputError: a share that is none.
    """

    place: Place
    pool_size: int
    pool_digest: str
    num_classes: int
    quorum: float = QUORUM
    seed: int | None = None
    progress: Progress | None = None
    terms: LabelTerms | None = None
    answered: int = 0
    left_out: tuple[tuple[str, str], ...] = ()
    kept: bool = False
    spent: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.quorum <= 1:
            raise InputError(f"--quorum {self.quorum}: a share above 0 and at most 1 is meant")

    def check(self, method: str) -> None:
        """Refuse, before any work, what cannot come to a good end.

        Raises:
            InputError: too few hospitals for a sum, or a policy that is none.
        """
        if method == "noise-cluster" and self.place.count < LEAST_PARTIES:
            raise InputError(few_hospitals(self.place.count))
        self.place.check()

    def terms_of(
        self, method: str, public: PublicInputs, settings: MethodSettings, epsilon: float
    ) -> LabelTerms:
        """What hospitals will be asked to agree to where a method runs, made ahead of it.

        Raises:
            InputError: a value out of range.
        """
        if method != "noise-cluster":
            return self._terms_of(epsilon=epsilon, delta=0.0)
        from pate_fed.label_dp.methods import clusters_to_name

        clusters, count = clusters_to_name(public, settings, epsilon)
        return self._terms_of(epsilon=epsilon, delta=settings.delta, clusters=clusters, num_clusters=count)

    def spendable(self, epsilon: float, delta: float) -> float:
        """How much of ε counts under masks spend; clearly less only where least shares of noise are more.

        The number of clusters has no part in it.

        Raises:
            InputError: too few hospitals, or a budget out of range.
        """
        clusters = np.zeros(self.pool_size, dtype=np.int64)
        terms = self._terms_of(epsilon=epsilon, delta=delta, clusters=clusters, num_clusters=self.num_classes)
        return terms.spent if terms.spent < _CLEARLY * epsilon else epsilon

    def respond(self, epsilon: float) -> PrivateLabels:
        """Labels after randomised response at each hospital, -1 where one is left out.

        Raises:
            InputError: ε out of range.
            QuorumError: too few hospitals answered.
        """
        found = self._study(self._terms_of(epsilon=epsilon, delta=0.0), None)
        response = RandRes(num_classes=self.num_classes, epsilon=epsilon)
        noise = noise_from_seed(self.seed)
        return PrivateLabels(
            label=found.label,
            num_classes=self.num_classes,
            epsilon=epsilon,
            delta=0.0,
            how=f"randomised response at {found.hospitals} hospitals, p={response.probability:.4f}",
            noise=noise.kind,
            private=noise.private,
        )

    def count(self, clusters: Ints, num_clusters: int, *, epsilon: float, delta: float) -> PrivateLabels:
        """Labels of all inputs from the hospitals' noisy counts in public clusters, summed under masks.

        Shapes: `clusters` int64 (n,).

        Raises:
            InputError: fewer clusters than classes, too few hospitals, or a budget out of range.
            QuorumError: too few hospitals are in the sum.
        """
        terms = self._terms_of(epsilon=epsilon, delta=delta, clusters=clusters, num_clusters=num_clusters)
        found = self._study(terms, clusters)
        return terms.clusters.release(
            found.totals, clusters, noise_from_seed(self.seed), survivors=found.hospitals
        )

    @property
    def sigma(self) -> float | None:
        """The noise in the last study's sum, in labels; None where nothing was summed."""
        share = None if self.terms is None else self.terms.sigma_party
        return None if share is None else share * self.answered**0.5

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
            "kept": self.kept,
            "backend": self.place.backend,
            "coordinator": {
                "epsilon": terms.spent if self.spent else 0.0,
                "delta": terms.delta,
                "sees": self._sees(terms) if self.spent else "nothing",
            },
            "sigma_party": terms.sigma_party,
            "colluders": terms.colluders if terms.secure_sum else None,
            "terms_digest": terms.digest,
            "terms": json.loads(terms.to_json()),
        }

    def lines(self) -> list[str]:
        """The same in words."""
        if self.terms is None:
            return []
        first = (
            f"hospitals: {self.answered} of {self.terms.num_clients} answered, {self.terms.least_clients} "
            f"were needed; the coordinator saw {self._sees(self.terms)}"
        )
        before = [f"their counts were summed before and kept in {self.place.kept}: nobody was asked again"]
        return [
            first,
            *(before if self.kept else []),
            *self._unspent(),
            *(f"left out: {who} ({why})" for who, why in self.left_out),
        ]

    def _unspent(self) -> list[str]:
        """One line where the least shares of many hospitals are more noise than the asked ε needs."""
        terms = self.terms
        if terms is None or terms.spent >= _CLEARLY * terms.epsilon:
            return []
        return [
            f"more noise than asked for: of ε {terms.epsilon:g} only {epsilon_text(terms.spent)} is spent, "
            f"since each of {terms.num_clients} hospitals adds at least {terms.sigma_party:.3g} labels to "
            "every count, and that costs accuracy; fewer hospitals in one sum would spend more of it"
        ]

    @staticmethod
    def _sees(terms: LabelTerms) -> str:
        return (
            "noisy counts of all hospitals together" if terms.secure_sum else "labels after each one's noise"
        )

    def _terms_of(self, **settings: Any) -> LabelTerms:
        return label_terms(
            study="label-dp",
            num_classes=self.num_classes,
            pool_size=self.pool_size,
            pool_digest=self.pool_digest,
            num_clients=self.place.count,
            quorum=self.quorum,
            seed=self.seed,
            **settings,
        )

    def _study(self, terms: LabelTerms, clusters: Ints | None) -> Any:
        from pate_fed.flower import prepare_environment
        from pate_fed.report import make_progress

        prepare_environment()
        stop = threading.Event()
        # Both parties' sides are named, as Flower names apps: pate_fed imports neither.
        coordinator = importlib.import_module("server.labels").LabelCoordinator(
            terms,
            clusters=clusters,
            backend=self.place.backend,
            progress=self.progress or make_progress(quiet=True),
            stop=stop,
            folder=self.place.kept,
        )
        with _stopping(stop):
            try:
                return coordinator.run(lambda app: self.place.run(app, coordinator, stop))
            finally:
                found, self.terms, self.spent = coordinator.found, terms, coordinator.spent
                self.answered, self.left_out, self.kept = found.hospitals, tuple(found.left_out), found.kept


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C stops the study first, so that the engine ends in order; then it is heard as always."""
    with ExitStack() as opened:
        if threading.current_thread() is threading.main_thread():
            opened.enter_context(interruptible(stop, kept="labels or counts that have come count as spent"))
        try:
            yield
        finally:
            raise_if(stop)
