"""From a study and its public pool to the terms that hospitals agree to, checked before any writing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.backend import PROCESSES
from pate_fed.config.data import deal_records, fix_unit
from pate_fed.config.defaults import known_records
from pate_fed.config.registry import find_part
from pate_fed.config.sections import CLASS_SUMS, Privacy
from pate_fed.config.study import Study
from pate_fed.config.trust import AT_HOSPITALS, TrustModel
from pate_fed.data import Dataset
from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster, least_share
from pate_fed.kinds.labels import COUNTS_UNDER_MASKS, RANDRES, LabelTerms, clusters_digest
from pate_fed.kinds.own import OwnTerms, own_terms, sigma_of
from pate_fed.kinds.rounds import (
    LENGTH,
    MOST_UNIT,
    WHOLE_LENGTH,
    RoundTerms,
    ScoredTerms,
    signed_norm,
)
from pate_fed.kinds.sums import SumTerms, protection_by, sum_noise
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.votes import VoteTerms, noise_share
from pate_fed.learning import RIDGE, STUDENTS, TABLE_STUDENTS, TABLE_TEACHERS, TEACHERS
from pate_fed.learning.features.directions import DirectionFeatures
from pate_fed.learning.teachers.own import try_own
from pate_fed.privacy.mechanisms.class_sums import SumShape, class_length
from pate_fed.privacy.mechanisms.own import OwnMechanism, own_mechanism
from pate_fed.privacy.protection import HOSPITAL_UNIT, LABEL, LEAST_PARTIES
from pate_fed.structure.parts import load_part, part_identity

if TYPE_CHECKING:
    from pate_fed.learning.features.feature_map import FeatureMap, FeatureSettings
    from pate_fed.learning.networks.encoder import Encoder


def make_terms(study: Study, dataset: Dataset) -> Terms:
    """The terms of a study over this pool.

    Raises:
        InputError: what the study leaves open cannot be fixed, or its unit is not what the data name.
    """
    study = fix_unit(study, dataset).resolve()
    made = _votes_of if study.aggregation.votes else _sums_of if study.aggregation.sums else _own_of
    asks, sigma_party = made(study, dataset)
    return Terms(
        study=study.name,
        asks=asks,
        num_classes=dataset.num_classes,
        image_shape=tuple(int(length) for length in dataset.public_images.shape[1:]),
        pool_size=len(dataset.public_images),
        pool_digest=dataset.pool_digest,
        num_clients=study.parties.num_clients,
        least_clients=study.least_clients,
        privacy=study.privacy,
        secrecy=study.secrecy,
        sigma_party=sigma_party,
        seed=study.seed,
        classes=dataset.class_names,
        table=study.data.table,
        window=study.data.window,
        about=study.about,
    )


def _votes_of(study: Study, dataset: Dataset) -> tuple[VoteTerms, float | None]:
    """The terms of votes, and each hospital's share of the noise in votes, where they add it."""
    secrecy, least = study.secrecy, study.least_clients
    encoder = public_encoder(study, dataset)
    mechanism = study_mechanism(study, num_classes=dataset.num_classes)
    a_label = study.aggregation.queries_a_label(
        study.parties.num_teachers, noise_at_hospitals=secrecy.at_hospitals
    )
    most = study.queries.cap(dataset.num_queries, a_label=a_label)
    votes = VoteTerms(
        teachers_per_client=study.parties.teachers_per_client,
        records_per_teacher=study.parties.records_per_teacher,
        teacher=study.teacher,
        aggregation=study.aggregation,
        labels=min(study.queries.labels or most, most),
        max_queries=most,
        encoder=None if encoder is None else encoder.digest,
        teacher_part=part_identity(study.teacher.name, "teacher") if study.teacher.own else None,
        claim=None if mechanism is None else mechanism.claim,
    )
    return votes, noise_share(study.aggregation, secrecy, least) if secrecy.at_hospitals else None


def _sums_of(study: Study, dataset: Dataset) -> tuple[SumTerms, float | None]:
    """The terms of class sums, and each hospital's share of the noise in steps, where they add it."""
    from pate_fed.learning.features.own import OwnFeatures

    features, privacy, secrecy = public_features(study, dataset), study.privacy, study.secrecy
    most = study.sums.most_records if privacy.unit == "hospital" else None
    steps: dict[str, int] = {}
    shares = secrecy.shares(study.parties.num_clients, study.least_clients) if secrecy.at_hospitals else None
    rounds = study.sums.rounds
    shape = SumShape(
        num_classes=dataset.num_classes,
        dimension=features.dimension,
        squared_norm=features.squared_norm * (study.data.several or 1),
    )
    longest = shape.squared_norm
    if isinstance(features, DirectionFeatures) and privacy.unit == HOSPITAL_UNIT:
        most, steps = _whole_lengths(study, dataset, features)
    elif rounds:
        steps = {"first": class_length(LENGTH, privacy.adjacency), "length": LENGTH}
    elif study.sums.scores:
        steps = {"first": 1, "length": 1}
    if steps:
        shape = replace(
            shape,
            squared_norm=features.squared_norm * steps["length"] ** 2,
            questions=1 + (rounds or 0),
            class_norm=features.squared_norm * steps["first"] ** 2,
        )
    scored: dict[str, Any] = {}
    if study.sums.scores:
        protection = protection_by(privacy, most)
        shape = replace(shape, squared_norm=signed_norm(shape.squared_norm, rounds or 0))
        count = shape.steps_of_count(protection)
        given = sum_noise(shape, protection, privacy=privacy, sigma2=study.aggregation.sigma2, shares=None)
        bins = _bins(study, dataset.num_classes, noise=given / count)
        shape = replace(shape, counts=(dataset.num_classes * bins, count))
        scored = {"held_out": study.sums.held_out, "bins": bins, "count": count}
    sigma2 = study.aggregation.sigma2  # in what a record adds to one label
    if sigma2 is not None and study.data.several:
        sigma2 /= math.sqrt(study.data.several)
    sigma = sum_noise(shape, protection_by(privacy, most), privacy=privacy, sigma2=sigma2, shares=shares)
    asked: dict[str, Any] = {
        "settings": features.settings,
        "features": features.digest,
        "dimension": features.dimension,
        "squared_norm": longest,
        "sigma": sigma if shares is None else None,
        "most_units": most,
        "part": features.part if isinstance(features, OwnFeatures) else None,
        "labels": dataset.num_queries,
    }
    share = None if shares is None else sigma
    if scored:
        return ScoredTerms(**asked | steps | scored, rounds=rounds or 0), share
    return RoundTerms(**asked | steps, rounds=rounds or 0) if steps else SumTerms(**asked), share


_BINS_OF_TWO, _BINS = 16, 4  # of each class that is said, at most
_BINS_UNKNOWN = 4  # where nobody says how many records there are
_NOISY = 0.05  # of all held-out records, that noise in their total may be


def _bins(study: Study, classes: int, *, noise: float) -> int:
    """In how many bins held-out records of each class are counted under noise of so many records on each."""
    most, records = _BINS_OF_TWO if classes == 2 else _BINS, known_records(study)
    if records is None:
        return min(most, _BINS_UNKNOWN)
    told = study.sums.held_out * records * study.parties.num_clients * _NOISY / (noise * classes)
    return int(min(most, max(1, told**2)))


_ROOM = 2**30  # of sums in 32 bits with signs; the rest is for noise


def _whole_lengths(study: Study, dataset: Dataset, features: DirectionFeatures) -> tuple[int, dict[str, int]]:
    """To how many records' length a hospital's whole sum is cut, and how often records count in a round.

    What a round tells is shorter than the first sum, so it counts more often under the same cut.
    """
    records = known_records(study)
    if records is None:
        raise InputError("--records: with the map directions a hospital's records are meant, about how many")
    pool = dataset.public_images[: dataset.num_queries]
    most, later = features.usual_lengths(records, dataset.num_classes, pool)
    most = study.sums.most_records or most
    if most * WHOLE_LENGTH * features.settings.lattice * study.parties.num_clients > _ROOM:
        raise InputError("sums.lattice: a smaller one is meant; sums of so many records may pass 32 bits")
    unit = min(MOST_UNIT, max(1, round(WHOLE_LENGTH * most / later)))
    return most, {"first": WHOLE_LENGTH, "length": WHOLE_LENGTH, "unit": unit}


def _own_of(study: Study, dataset: Dataset) -> tuple[OwnTerms, float | None]:
    """The terms of a kind of the user's own, and the noise of each hospital, where they add it."""
    given, secrecy, least = study.aggregation, study.secrecy, study.least_clients
    terms, code = own_terms(given.kind or "", dict(given.parameters), study.privacy)
    if not secrecy.at_hospitals:
        return terms, None
    return terms, sigma_of(code, secrecy.shares(study.parties.num_clients, least).honest)


@lru_cache(maxsize=1)
def public_features(study: Study, dataset: Dataset) -> FeatureMap:
    """The feature map of a study of class sums, from its schema and the public inputs that get labels."""
    public = dataset.public_images[: dataset.num_queries]
    numbers = public.shape[1] if study.data.own and public.ndim == 2 else 0
    return feature_map_of(study.sums.of_inputs(study.data.table, numbers=numbers), public)


def feature_map_of(settings: FeatureSettings, public: NDArray[Any]) -> FeatureMap:
    """The feature map that settings name, ours or the user's own, made of public inputs (n, ...).

    Raises:
        InputError: a pool that does not fit the settings, or a part that fails.
    """
    from pate_fed.learning.features.own import own_features

    build = own_features if settings.own else find_part(settings.name, "feature map")
    found: FeatureMap = build(settings, public)
    return found


def public_file(study: Study, dataset: Dataset) -> bytes:
    """The public file that hospitals get with the terms, an encoder or a feature map; else empty."""
    if study.aggregation.sums:
        return public_features(study, dataset).to_bytes()
    encoder = public_encoder(study, dataset)
    return b"" if encoder is None else encoder.to_bytes()


def study_mechanism(study: Study, *, num_classes: int) -> OwnMechanism | None:
    """The mechanism of the user's own that a study names, with its curve read; None where it is ours.

    Raises:
        InputError: it cannot be loaded, fails, or claims no curve.
    """
    given, parties, privacy = study.aggregation, study.parties, study.privacy
    if not given.own:
        return None
    return own_mechanism(
        load_part(given.aggregator, "aggregator"),
        classes=num_classes,
        num_teachers=parties.num_teachers,
        protection=privacy.protection(parties.teachers_per_client),
        parameters=dict(given.parameters),
        identity=part_identity(given.aggregator, "aggregator"),
    )


def public_encoder(study: Study, dataset: Dataset) -> Encoder | None:
    """What teachers learn on, fitted to the public inputs that may be asked about; None where none is needed.

    The student of such teachers starts from it too.
    """
    if not study.aggregation.votes or not study.teacher.needs_encoder:
        return None
    from pate_fed.learning.networks.encoder import encoder_for  # late: tables need no torch

    pool = dataset.public_images[: dataset.num_queries]
    return encoder_for(study.teacher, pool)


def check_against_data(study: Study, dataset: Dataset) -> None:
    """What only the data can tell about a study.

    Raises:
        InputError: a teacher, student or query strategy of one's own that cannot do its work, more teachers
            than private records, a party with fewer records than teachers, more queries than the pool holds,
            networks for rows, forests for images, or a device that is not there.
    """
    _check_models(study, dataset)
    # Where hospitals keep their own files, the coordinator has none of their records.
    if len(dataset.private_labels) or not study.data.from_files:
        _check_private(study, dataset)
    if dataset.public_images.ndim > 2:
        from pate_fed.learning.tensors import resolve_device

        resolve_device(study.engine.device)
    if study.teacher.own:
        what = f"teacher {study.teacher.name!r}"
        part = load_part(study.teacher.name, "teacher")
        shape, classes = dataset.input_shape, dataset.num_classes
        try_own(part, dataset.public_images, shape=shape, what=what, num_classes=classes)
    if (code := study.student.code) is not None:
        from pate_fed.learning.students.own import try_own_student

        try_own_student(
            load_part(code, "student"),
            dataset.public_images,
            shape=dataset.input_shape,
            what=f"student {code!r}",
            num_classes=dataset.num_classes,
            network=not study.student.own,
            with_probabilities=study.aggregation.aggregator == CLASS_SUMS,
        )
    if study.queries.own_strategy:
        from pate_fed.learning.students.query_selection import try_own_strategy

        try_own_strategy(
            load_part(study.queries.strategy, "query strategy"),
            dataset.public_images[: dataset.num_queries],
            name=study.queries.strategy,
            num_classes=dataset.num_classes,
            seed=study.seed_for("strategy", 0),
        )
    most = study.queries.max_queries
    if most is not None and most > dataset.num_queries and not study.is_planned:
        raise InputError(
            f"--max-queries {most}: {dataset.name} has {dataset.num_queries} public inputs to ask about"
        )


def _check_models(study: Study, dataset: Dataset) -> None:
    """What a study itself tells of its inputs but where they are the user's own data."""
    rows, sums = dataset.public_images.ndim == 2, study.aggregation.sums
    if study.data.drawn and study.data.pool is not None:
        raise InputError("data.pool: none is meant where data.table.ranges are declared, which stand for it")
    if study.data.drawn and not (sums and study.student.name == RIDGE):
        raise InputError(
            f"data.table.ranges: stand for public inputs; --aggregator {CLASS_SUMS} with --student {RIDGE} "
            "is meant, as nothing else learns without any"
        )
    if study.sums.scores and study.student.name != RIDGE:
        raise InputError(
            f"sums.scores: --student {RIDGE} is meant, as held-out records are counted by its weights"
        )
    what = f"dataset {study.data.dataset!r}"
    students = (RIDGE,) * sums + (TABLE_STUDENTS if rows else STUDENTS)
    teachers = TABLE_TEACHERS if rows else TEACHERS
    for kind, given, choices in (
        *((("teacher", study.teacher, teachers),) if study.aggregation.votes else ()),
        ("student", study.student, students),
    ):
        if given.name not in choices and not given.own:
            gives = "rows" if rows else "images"
            raise InputError(
                f"{what}: gives {gives}, so --{kind} {given.name} cannot learn from it: one of "
                f"{', '.join(choices)} is meant, or one of your own"
            )
    if rows and study.data.own and study.engine.backend == PROCESSES:
        raise InputError(
            f'{what}: gives rows; hospitals apart need dataset = "table", whose schema says what they are'
        )


def _check_private(study: Study, dataset: Dataset) -> None:
    records, teachers = len(dataset.private_labels), study.parties.num_teachers
    if teachers > records:
        raise InputError(
            f"--num-clients {study.parties.num_clients} with --teachers-per-client "
            f"{study.parties.teachers_per_client}: {teachers} teachers, but {dataset.name} has {records} "
            "private records; every teacher needs at least one"
        )
    _check_parts(study, dataset, least=study.parties.teachers_per_client)


def _check_parts(study: Study, dataset: Dataset, *, least: int) -> None:
    """A skewed partition may leave a party fewer records, or patients, than it has teachers."""
    parties, patients = study.parties, dataset.patients
    parts = deal_records(study, dataset)
    if patients is not None and not fix_unit(study, dataset).privacy.by_patient:
        patients = None
    fewest = min(len(part if patients is None else np.unique(patients[part])) for part in parts)
    if fewest < least:
        what = "records" if patients is None else "patients"
        raise InputError(
            f"--partition {parties.partition} with --teachers-per-client {parties.teachers_per_client}: the "
            f"smallest party has {fewest} {what}, and every teacher needs at least one; give fewer "
            "teachers, fewer parties or a larger ALPHA"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicPool:
    """The public inputs whose labels are private: their number, SHA-256 hex and shape, and the classes."""

    size: int
    digest: str
    num_classes: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicClusters:
    """The cluster of each public input, int64 (n,), of `count`, and the δ of noisy counts in them."""

    place: NDArray[np.int64] = field(repr=False)
    count: int
    delta: float


def label_terms(
    pool: PublicPool,
    *,
    num_clients: int,
    quorum: float,
    epsilon: float,
    seed: int | None,
    clusters: PublicClusters | None = None,
    study: str = "label-dp",
) -> Terms:
    """Terms of randomised response or, with `clusters`, of counts under masks.

    At least the share `quorum` of the hospitals must answer; under masks two thirds at least, and one in ten
    may tell the coordinator its own noise, as in a study with votes.

    Raises:
        InputError: a value out of range, or too few hospitals to hide one among.
    """
    if not 0 < quorum <= 1:
        raise InputError(f"--quorum {quorum}: a share above 0 and at most 1 is meant")
    if clusters is not None and num_clients < LEAST_PARTIES:
        raise InputError(
            f"hospitals={num_clients}: a sum over fewer than {LEAST_PARTIES} hides too little; give more of "
            "them, or a method with randres"
        )
    trust = TrustModel() if clusters is None else TrustModel(secure_sum=True, noise_at=AT_HOSPITALS)
    least, counted = trust.least_voters(num_clients, quorum), dict[str, Any]()
    asks = LabelTerms(method=RANDRES)
    if clusters is not None:
        colluders = trust.shares(num_clients, least).colluders
        counts = NoiseCluster(
            num_clusters=clusters.count, num_classes=pool.num_classes, epsilon=epsilon, delta=clusters.delta
        )
        share = least_share(counts, survivors=least, colluders=colluders)
        counted = {"sigma_party": share, "secrecy": replace(trust, colluders=colluders)}
        asks = LabelTerms(
            method=COUNTS_UNDER_MASKS,
            num_clusters=clusters.count,
            clusters=clusters_digest(clusters.place),
        )
    return Terms(
        study=study,
        asks=asks,
        num_classes=pool.num_classes,
        image_shape=pool.shape,
        pool_size=pool.size,
        pool_digest=pool.digest,
        num_clients=num_clients,
        least_clients=least,
        privacy=Privacy(epsilon=epsilon, delta=0.0 if clusters is None else clusters.delta, unit=LABEL.unit),
        seed=seed,
        **counted,
    )


def spendable_by_counts(pool: PublicPool, *, epsilon: float, delta: float, **others: Any) -> float:
    """How much of ε counts under masks spend (`LabelTerms.spendable`); `others` are those of `label_terms`.

    The number of clusters has no part in it.

    Raises:
        InputError: too few hospitals, or a budget out of range.
    """
    place = np.zeros(pool.size, dtype=np.int64)
    clusters = PublicClusters(place=place, count=pool.num_classes, delta=delta)
    terms = label_terms(pool, epsilon=epsilon, clusters=clusters, **others)
    return LabelTerms.of(terms).spendable(terms)
