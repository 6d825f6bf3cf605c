"""Small valid values for tests: terms of a study, and the same value with settings changed by their names."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from pate_fed.config.sections import Aggregation, Privacy
from pate_fed.config.trust import TrustModel
from pate_fed.data import Dataset, Schema
from pate_fed.kinds.make import PublicPool, label_terms
from pate_fed.kinds.rounds import ScoredTerms
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.votes import VoteTerms
from pate_fed.learning import TeacherSettings
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.structure.parts import PartIdentity

T = TypeVar("T")

PLAIN_POLICY = (
    "seeded_noise = true\nplain_votes = true\nleast_hospitals = 2\nleast_confirmed = 0\nleast_colluders = 0\n"
)
"""The policy.toml of hospitals that rehearse with seeded noise and plain votes, two of three in a batch."""


SMALL_STUDY = """
[parties]
num_clients = 6
[data.glyph]
classes = 3
private = 120
public = 60
[teacher]
name = "hog-linear"
[aggregation]
aggregator = "gnmax"
sigma2 = 2.0
[queries]
labels = 4
max_queries = 4
[privacy]
allow_weak = true
[student]
name = "encoder-head"
[engine]
backend = "inline"
"""
"""A study.toml of six parties that is simulated in a second."""


def make_terms(**changes: Any) -> Terms:
    """Terms of ten hospitals that vote on images of three classes; `changes` as for `vary`."""
    terms = Terms(
        study="s",
        asks=VoteTerms(
            teachers_per_client=1,
            teacher=TeacherSettings(),
            aggregation=Aggregation(aggregator="confident-gnmax", threshold=6.0, sigma1=6.0, sigma2=5.0),
            labels=200,
            max_queries=1500,
        ),
        num_classes=3,
        image_shape=(8, 8, 1),
        pool_size=2000,
        pool_digest="00" * 32,
        num_clients=10,
        least_clients=8,
        privacy=Privacy(unit="record"),
    )
    return vary(terms, **changes)


def make_lung_terms() -> Terms:
    """Terms of a study of 100 tables' rows of three columns, ill or well."""
    return make_terms(
        study="lungs",
        num_classes=2,
        image_shape=(3,),
        pool_size=100,
        pool_digest="ab" * 32,
        teachers_per_client=5,
        aggregator="gnmax",
        sigma2=20.0,
        labels=50,
        max_queries=60,
        classes=("ill", "well"),
    )


def make_noisy_terms() -> Terms:
    """Terms of a study whose hospitals add the noise themselves, with no field left at None that may be."""
    return make_terms(
        secrecy=TrustModel(secure_sum=True, noise_at="hospitals", colluders=1),
        sigma_party=3.0,
        classes=("a", "b", "c"),
        encoder="ab" * 32,
        seed=3,
        epsilon=2.0,
    )


def make_table_terms() -> Terms:
    """Terms of a study of tables."""
    schema = Schema(label="y", classes=("a", "b", "c"), columns=(("x", ()), ("z", ("only",))))
    return vary(make_terms(image_shape=(2,)), table=schema)


def make_sum_terms(*, at_hospitals: bool = True, **changes: Any) -> Terms:
    """Terms of ten hospitals that give sums of 20 features by class once, at about ε 1."""
    sums = SumTerms(
        settings=FeatureSettings(dimension=19),
        features="cd" * 32,
        dimension=20,
        squared_norm=1024**2,
        sigma=None if at_hospitals else 6000.0,
        most_units=None,
        labels=1500,
    )
    noise_at, sigma_party = ("hospitals", 2400.0) if at_hospitals else ("coordinator", None)
    colluders = 1 if at_hospitals else None
    terms = replace(
        make_terms(),
        secrecy=TrustModel(secure_sum=True, noise_at=noise_at, colluders=colluders),
        sigma_party=sigma_party,
        asks=sums,
    )
    return vary(terms, **changes)


def make_scored_terms(*, at_hospitals: bool = True, rounds: int = 2, **changes: Any) -> Terms:
    """The same in rounds, and with a fifth of the records held out and counted once."""
    terms = make_sum_terms(at_hospitals=at_hospitals, **changes)
    plain = {each.name: getattr(terms.asks, each.name) for each in fields(SumTerms) if each.name != "kind"}
    noise = {"sigma": None} if at_hospitals else {"sigma": 120_000.0}
    scored = ScoredTerms(**plain | noise, rounds=rounds, first=14, held_out=0.2, bins=4, count=20_000)
    return replace(terms, asks=scored, sigma_party=48_000.0 if at_hospitals else None)


THEIRS = PartIdentity(name="theirs.mech:make", version="1.2", digest="cd" * 32)
"""Code of somebody else's."""


def own_map_terms(**changes: Any) -> Terms:
    """Terms of class sums whose features are those of somebody else's code."""
    terms = make_sum_terms(**changes)
    theirs = replace(SumTerms.of(terms), settings=FeatureSettings(name=THEIRS.name), part=THEIRS)
    return replace(terms, asks=theirs)


def make_label_terms() -> Terms:
    """Terms of three hospitals that answer for their labels of 50 public inputs by randomised response."""
    pool = PublicPool(size=50, digest="00" * 32, num_classes=3, shape=(8, 8, 1))
    return label_terms(pool, num_clients=3, quorum=0.6, epsilon=1.0, seed=None, study="s")


def vary(value: T, **changes: Any) -> T:
    """The same dataclass with settings changed by their own names, in every section that has them.

    What the value has itself is changed there alone.
    """
    unknown = set(changes) - _names(value)
    if unknown:
        raise TypeError(f"{type(value).__name__} has no setting {', '.join(sorted(unknown))}")
    own = {each.name for each in fields(value)}  # type: ignore[arg-type]
    made = {name: change for name, change in changes.items() if name in own}
    for name in own - set(made):
        section = getattr(value, name)
        inner = {key: changes[key] for key in changes if key not in own and key in _names(section)}
        if inner:
            made[name] = vary(section, **inner)
    return replace(value, **made)  # type: ignore[type-var]


def _names(value: object) -> set[str]:
    """The settings of a value and of the sections in it."""
    if not is_dataclass(value):
        return set()
    return {each.name for each in fields(value)}.union(
        *(_names(getattr(value, each.name)) for each in fields(value))
    )


def make_rows(count: int, queries: int) -> Dataset:
    """A table's pool of which the sign of the only column is the class."""
    rows = np.random.default_rng(0).normal(size=(count, 1))
    return Dataset(
        name="pool",
        num_classes=2,
        class_names=("no", "yes"),
        private_images=rows[:0],
        private_labels=np.empty(0, dtype=np.int64),
        public_images=rows,
        public_labels=(rows[:, 0] > 0).astype(np.int64),
        num_queries=queries,
        pool_digest="00" * 32,
    )
