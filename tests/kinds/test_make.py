"""From a study and its public pool to terms, and what only the data can tell about a study."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pate_fed.config.backend import Engine
from pate_fed.config.sections import Aggregation, Data, Parties, Queries
from pate_fed.config.study import Study
from pate_fed.config.trust import TrustModel
from pate_fed.data import Dataset, pool_digest
from pate_fed.errors import InputError
from pate_fed.kinds.make import check_against_data, make_terms, public_encoder, public_file
from pate_fed.kinds.terms import Terms
from pate_fed.learning import StudentSettings, TeacherSettings
from pate_fed.learning.networks.encoder import Encoder

STUDY = Study(
    parties=Parties(num_clients=4, teachers_per_client=2),
    aggregation=Aggregation(aggregator="confident-gnmax"),
    engine=Engine(device="cpu"),
)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 256, (30, 28, 28, 1)).astype(np.uint8)
    return Dataset(
        name="noise",
        num_classes=3,
        class_names=("a", "b", "c"),
        private_images=rng.integers(0, 256, (40, 28, 28, 1)).astype(np.uint8),
        private_labels=np.arange(40) % 3,
        public_images=pool,
        public_labels=np.arange(30) % 3,
        num_queries=20,
        pool_digest=pool_digest(pool),
    )


def test_terms_are_of_this_study_over_this_pool(dataset: Dataset) -> None:
    terms, study = make_terms(STUDY, dataset), STUDY.resolve()
    assert (terms.num_classes, terms.image_shape, terms.classes) == (3, (28, 28, 1), ("a", "b", "c"))
    assert (terms.pool_size, terms.pool_digest) == (30, dataset.pool_digest)
    assert (terms.num_clients, terms.asks.teachers_per_client, terms.least_clients) == (
        4,
        2,
        study.least_clients,
    )
    assert terms.max_queries <= 20  # what only tests is not asked about
    assert (terms.asks.aggregation, terms.privacy) == (study.aggregation, study.privacy)
    assert terms.sigma_party is None
    assert Terms.from_json(terms.to_json()) == terms


def test_where_hospitals_add_the_noise_each_has_a_share(dataset: Dataset) -> None:
    secrecy = TrustModel(secure_sum=True, noise_at="hospitals")
    terms = make_terms(replace(STUDY, secrecy=secrecy), dataset)
    assert terms.sigma_party is not None
    assert 0 < terms.sigma_party < terms.asks.aggregation.sigma2  # type: ignore[operator]


def test_the_encoder_is_fitted_to_what_may_be_asked_about_alone(dataset: Dataset) -> None:
    without = replace(STUDY, teacher=TeacherSettings(name="small-cnn"))
    assert public_file(without, dataset) == b""
    assert make_terms(without, dataset).asks.file is None
    study = replace(STUDY, teacher=TeacherSettings(name="encoder-head"))
    images = np.array(dataset.public_images)
    images[20:] = 0  # these are only tested with
    found = public_encoder(study, replace(dataset, public_images=images))
    assert found is not None
    sent = Encoder.from_bytes(public_file(study, dataset))
    assert sent.digest == found.digest == make_terms(study, dataset).asks.file


@pytest.mark.parametrize(
    ("study", "words"),
    [
        (replace(STUDY, parties=Parties(num_clients=41)), "--num-clients 41 .*40 private records"),
        (replace(STUDY, parties=Parties(num_clients=14, teachers_per_client=3)), "42 teachers"),
        (
            replace(
                STUDY, parties=Parties(num_clients=4, teachers_per_client=5, partition="dirichlet:0.001")
            ),
            "fewer teachers",
        ),
        (replace(STUDY, queries=Queries(max_queries=21)), "--max-queries 21: noise has 20"),
    ],
    ids=["parties", "teachers", "skewed", "queries"],
)
def test_what_only_the_data_can_tell(study: Study, words: str, dataset: Dataset) -> None:
    check_against_data(STUDY, dataset)
    with pytest.raises(InputError, match=words):
        check_against_data(study, dataset)


def test_where_hospitals_keep_their_files_their_records_are_not_counted(dataset: Dataset) -> None:
    apart = replace(
        dataset, private_images=dataset.private_images[:0], private_labels=dataset.private_labels[:0]
    )
    files = Data(dataset="images", pool="pool.npz", classes=("a", "b", "c"))
    check_against_data(replace(STUDY, data=files), apart)
    with pytest.raises(InputError, match="0 private records"):
        check_against_data(STUDY, apart)


def test_networks_learn_from_images_and_forests_from_rows(dataset: Dataset) -> None:
    rows = replace(
        dataset,
        private_images=dataset.private_images.reshape(40, -1).astype(np.float64),
        public_images=dataset.public_images.reshape(30, -1).astype(np.float64),
    )
    own = Data(dataset="theirs:load")
    forests = {"teacher": TeacherSettings(name="random-forest"), "student": StudentSettings(name="forest")}
    check_against_data(replace(STUDY, data=own, **forests), rows)
    for study, given, said in (
        (replace(STUDY, data=own), rows, "'theirs:load': gives rows, so --teacher encoder-head cannot"),
        (replace(STUDY, data=own, teacher=forests["teacher"]), rows, "--student .* cannot learn"),
        (replace(STUDY, data=own, **forests), dataset, "gives images, so --teacher random-forest cannot"),
        (replace(STUDY, data=own, **forests, engine=Engine(backend="grpc")), rows, 'need dataset = "table"'),
    ):
        with pytest.raises(InputError, match=said):
            check_against_data(study, given)
