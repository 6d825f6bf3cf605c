"""Terms of a study of private images or records: what every hospital agrees to before it trains."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from pate_fed.config.about import About
from pate_fed.config.backend import AUTO
from pate_fed.config.sections import (
    MOST_CLASSES,
    MOST_INPUTS,
    MOST_TEACHERS,
    Aggregation,
    Data,
    Parties,
    Privacy,
    Queries,
)
from pate_fed.config.trust import MOST_PARTIES, TrustModel
from pate_fed.data import Schema
from pate_fed.learning import TeacherSettings
from pate_fed.privacy.bounds.claimed import Claim
from pate_fed.privacy.protection import FEATURE_MAP, TEACHER, Assumption, Assumptions
from pate_fed.protocol.agreed import Agreed
from pate_fed.protocol.sum_terms import SumTerms
from pate_fed.structure import check, refusal, same_as, setting
from pate_fed.structure.parts import PartIdentity, is_part_name

_SHA256: dict[str, Any] = {"pattern": re.compile(r"[0-9a-f]{64}"), "allowed": "a SHA-256 in hexadecimal"}
_MOST_LENGTH = 10_000_000  # numbers that an input has
_MOST_SUMS = 10**8  # in one message


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Agreed):
    """What a hospital agrees to before it trains; fixed before the first vote is seen.

    The sections are those of the study, resolved. Where `secrecy.noise_at` is "hospitals" each adds noise of
    `sigma_party` votes first, so that sums over `least_clients` of them, less the colluders that may tell
    theirs, hold the vote's noise. `encoder` is the SHA-256 of the public encoder that teachers learn on, None
    where they need none; `table` is what a table's columns mean, `window` what is black and white in DICOM
    images. `teacher_part` is the code of a teacher that is none of ours, `claim` what such a mechanism says
    of itself. `about` says who asks and what for, to people.

    With `sums` nothing is trained or voted on: sums of features by class are asked for once, under masks.
    `sigma_party` is then in the feature map's steps, `labels` and `max_queries` are the public inputs for
    which labels are made of these sums.

    Raises:
        InputError: a value of the wrong type or out of range, or values that do not go together.
    """

    study: str = setting(most=100)
    num_classes: int = setting(low=2, high=MOST_CLASSES)
    image_shape: tuple[int, ...] = setting(unit="lengths", low=1, high=_MOST_LENGTH)
    pool_size: int = setting(low=1, high=MOST_INPUTS)
    pool_digest: str = setting(**_SHA256)
    num_clients: int = same_as(Parties, "num_clients")
    teachers_per_client: int = same_as(Parties, "teachers_per_client")
    records_per_teacher: int | None = same_as(Parties, "records_per_teacher", None)
    least_clients: int = setting(low=1, high=MOST_PARTIES)
    aggregation: Aggregation
    labels: int = same_as(Queries, "labels")
    max_queries: int = same_as(Queries, "max_queries")
    privacy: Privacy
    teacher: TeacherSettings
    secrecy: TrustModel = field(default_factory=TrustModel)
    sigma_party: float | None = setting(None, unit="votes", low=1e-6, high=1e9)
    seed: int | None = setting(None, low=0, high=2**63 - 1)
    classes: tuple[str, ...] = setting((), most=1000)
    table: Schema | None = None
    window: tuple[float, float] | None = same_as(Data, "window", None)
    encoder: str | None = setting(None, **_SHA256)
    teacher_part: PartIdentity | None = None
    claim: Claim | None = None
    about: About = field(default_factory=About)
    sums: SumTerms | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.sums is None and not self.aggregation.sums and not self.aggregation.own:
            self.aggregation.fixed()
        own = self.teacher.name if is_part_name(self.teacher.name) else None
        part = None if self.teacher_part is None else self.teacher_part.name
        shape, features = self.image_shape, self.table.num_features if self.table is not None else None
        for name, fits, wanted in (
            ("aggregation.aggregator", self.aggregation.aggregator != AUTO, "one that is fixed"),
            ("teachers_per_client", self.num_teachers <= MOST_TEACHERS, f"at most {MOST_TEACHERS:,} in all"),
            ("least_clients", self.least_clients <= self.num_clients, f"at most {self.num_clients}"),
            ("image_shape", len(shape) in (1, 2, 3), "height, width and channels, or a row's length"),
            ("image_shape", math.prod(shape) <= _MOST_LENGTH, f"at most {_MOST_LENGTH:,} numbers"),
            ("image_shape", features is None or shape == (features,), f"the table's {features} features"),
            ("teacher_part", own == part, "the code of the very teacher, where it is none of ours,"),
            ("claim", self._claim_fits(), "what the very mechanism claims, where it is none of ours,"),
            (
                "secrecy.noise_at",
                not (self.adds_noise and self.claim),
                "the coordinator, with such a mechanism,",
            ),
            ("classes", len(self.classes) in (0, self.num_classes), f"a name for each of {self.num_classes}"),
            ("window", self.window is None or self.window[0] < self.window[1], "[black, white]"),
            ("sigma_party", self.adds_noise == (self.sigma_party is not None), "noise, if hospitals add it,"),
            ("secrecy.colluders", not self.adds_noise or self.secrecy.colluders is not None, "a number"),
            ("secrecy.colluders", self.colluders < self.least_clients, f"fewer than {self.least_clients}"),
        ):
            if not fits:
                raise refusal(self, name, f"{wanted} is meant")
        self._check_sums()

    def _claim_fits(self) -> bool:
        claim = self.claim
        if claim is None:
            return not self.aggregation.own
        same = set(self.aggregation.parameters) <= set(claim.parameters)
        return same and claim.part.name == self.aggregation.aggregator

    def _check_sums(self) -> None:
        sums, hospital = self.sums, self.privacy.unit == "hospital"
        if self.aggregation.sums != (sums is not None):
            raise refusal(self, "sums", "a feature map, if sums of features are asked for, is meant")
        if sums is None:
            return
        for name, fits, wanted in (
            ("secrecy.secure_sum", self.secure_sum, "true: sums leave hospitals under masks only"),
            ("sums.sigma", (sums.sigma is None) == self.adds_noise, "noise, if the coordinator adds it,"),
            (
                "sums.dimension",
                sums.dimension * self.num_classes <= _MOST_SUMS,
                f"at most {_MOST_SUMS:,} sums",
            ),
            (
                "sums.most_units",
                (sums.most_units is not None) == hospital,
                "a number, for the unit hospital,",
            ),
            ("teachers_per_client", self.teachers_per_client == 1, "1, as nothing is trained,"),
            ("records_per_teacher", self.records_per_teacher is None, "none, as nothing is trained,"),
            ("max_queries", self.labels == self.max_queries <= self.pool_size, "the inputs that get a label"),
        ):
            if not fits:
                raise refusal(self, name, f"{wanted} is meant")

    def assumptions(self, *, together: bool = False) -> Assumptions:
        """Code of others on whose word every ε rests; `together`: one process plays several hospitals.

        State that such code hides passes from record to record, or teacher to teacher, of its own process.
        Where that is one hospital's, and the unit moves all that the hospital gives, nothing rests on it.
        """
        found = [] if self.claim is None else [self.claim.assumption]
        if self.sums is not None:
            part = self.sums.part
            if part is not None and (together or self.privacy.unit != "hospital"):
                found.append(Assumption(kind=FEATURE_MAP, part=part))
        elif self.teacher_part is not None:
            most = self.teachers_per_client
            if together or self.privacy.votes_moved(most) < most:
                found.append(Assumption(kind=TEACHER, part=self.teacher_part))
        return Assumptions(tuple(found))

    @property
    def names_patients(self) -> bool:
        """Whether a column of the study's table says which rows are one patient's."""
        return self.table is not None and self.table.patient is not None

    @property
    def num_teachers(self) -> int:
        """Teachers in the whole federation, or the most that there can be: no query has more votes.

        None, 0, where sums of features are asked for.
        """
        if self.sums is not None:
            return 0
        return self.num_clients * self.teachers_per_client

    @property
    def least_teachers(self) -> int:
        """The fewest teachers that a hospital has."""
        if self.sums is not None:
            return 0
        return self.teachers_per_client if self.records_per_teacher is None else 1

    @property
    def delta(self) -> float:
        """The δ that every ε is stated for."""
        return self.privacy.delta

    @property
    def secure_sum(self) -> bool:
        """Whether votes leave a hospital masked only."""
        return self.secrecy.secure_sum

    @property
    def adds_noise(self) -> bool:
        """Whether each hospital adds its share of the noise."""
        return self.secrecy.at_hospitals

    @property
    def colluders(self) -> int:
        """Hospitals that may tell the coordinator their own noise."""
        return self.secrecy.colluders or 0
