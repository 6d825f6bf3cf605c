"""The unit patient: who is dealt where, what such a one moves, and what ε is stated for it, of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_sum_terms, make_terms, vary
from numpy.typing import NDArray
from own_kind import Median
from seeded_studies import HOSPITAL_NOISE, MASKS, NearestMean, in_turn

from clients.site import Site
from pate_fed import simulate
from pate_fed.cli.terms import make_page
from pate_fed.config.data import deal_records, fix_unit, most_parties
from pate_fed.config.study import Study, study_from_dict
from pate_fed.data import Dataset, Schema, as_dataset
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.make import make_terms as terms_of
from pate_fed.kinds.terms import Terms, worst_epsilon
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.privacy import GNMax, Protection, capped_cost_epsilon
from pate_fed.privacy.ledger.report import verify_run

Ints = NDArray[np.int64]

PATIENTS, EACH, PARTIES = 120, 5, 40
OF = np.repeat(np.arange(PATIENTS), EACH)
NAMED = Schema(label="y", classes=("a", "b", "c"), columns=(("x", ()),), patient="id")
UNNAMED = replace(NAMED, patient=None)


def rows(**more: Any) -> dict[str, Any]:
    """120 patients of five records, of three classes that mix in a patient; few of them are told apart."""
    count = PATIENTS * EACH
    labels = (np.arange(count) // 3 + np.arange(count)) % 3
    points = np.array([[20, 20], [120, 40], [60, 140]])
    public = np.arange(80) % 3
    return {
        "private_images": (points[labels] + np.arange(2 * count).reshape(-1, 2) % 50) / 255,
        "private_labels": labels,
        "public_images": (points[public] + np.arange(160).reshape(-1, 2) % 50) / 255,
        "public_labels": public,
        "num_queries": 60,
        "patients": OF,
        **more,
    }


def data(**more: Any) -> Dataset:
    return as_dataset(rows(**more), what="dataset 'm:load'", name="m:load")


def make_study(**sections: Any) -> Study:
    """Of 40 parties with the user's own data; settings by section."""
    values: dict[str, Any] = {
        "parties": {"num_clients": PARTIES},
        "data": {"dataset": "m:load"},
        "teacher": {"name": "random-forest", "trees": 2},
        "student": {"name": "forest", "trees": 2},
        "aggregation": {"aggregator": "gnmax", "sigma2": 8.0},
        "queries": {"labels": 4, "max_queries": 6},
        "privacy": {"allow_weak": True},
    }
    for name, settings in sections.items():
        values[name] = {**values.get(name, {}), **settings}
    return study_from_dict(values).resolve()


def spread(parties: int) -> Ints:
    """The party of each record, where the records of patient p are in so many parties from p on."""
    return np.asarray((OF + np.arange(len(OF)) % EACH % parties) % PARTIES)


# Who is dealt where.


def test_the_patients_of_ones_own_data_are_dealt_whole() -> None:
    study, dataset = make_study(), data()
    assert most_parties(deal_records(study, dataset), OF) == 1
    assert terms_of(study, dataset).privacy.unit == "patient"
    # With the unit record they are dealt one by one, as if nobody were named: for patients ε was wrong then.
    each = replace(study, privacy=replace(study.privacy, unit="record"))
    by_record, unnamed = deal_records(each, dataset), deal_records(study, data(patients=None))
    assert all(map(np.array_equal, by_record, unnamed))
    assert most_parties(by_record, OF) == EACH
    assert terms_of(each, dataset).privacy.unit == "record"
    assert terms_of(study, data(patients=None)).privacy.unit == "record"


@pytest.mark.parametrize("scheme", ["iid", "dirichlet:0.3", "dirichlet:5"])
@pytest.mark.parametrize("unit", ["auto", "hospital"])
def test_every_scheme_keeps_a_patient_in_one_party(scheme: str, unit: str) -> None:
    study = make_study(parties={"partition": scheme}, privacy={"unit": unit})
    parts = deal_records(study, data())
    assert most_parties(parts, OF) == 1 and len(parts) == PARTIES
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(OF)))
    assert all(map(np.array_equal, parts, deal_records(study, data())))


def test_more_parties_than_patients_are_refused() -> None:
    few = data(patients=np.arange(len(OF)) % 39)
    with pytest.raises(InputError, match="40 parties for 39 patients"):
        deal_records(make_study(), few)


Layout = Callable[[int], dict[str, Any]]


def test_own_parts_beyond_what_is_declared_are_refused_and_tell_nothing_of_the_records() -> None:
    for most in (1, 2, 4):
        study = make_study(privacy={"hospitals_per_patient": most})
        assert deal_records(study, data(owners=spread(most)))
        with pytest.raises(InputError, match="a patient is in more than") as refused:
            deal_records(study, data(owners=spread(most + 1)))
        numbers = {int(word) for word in str(refused.value).replace(",", " ").split() if word.isdigit()}
        assert numbers <= {most}
    lone = spread(1)
    lone[7] = (lone[7] + 1) % PARTIES  # one record of 600
    with pytest.raises(InputError, match="more than 1 party"):
        deal_records(make_study(), data(owners=lone))
    assert deal_records(make_study(privacy={"unit": "record"}), data(owners=lone))


def test_an_own_partition_that_takes_patients_apart_is_refused_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    values = {
        "parties": {"num_clients": 8},
        "aggregation": {"aggregator": "gnmax", "sigma2": 1.5},
        "queries": {"labels": 10, "max_queries": 10},
        "privacy": {"allow_weak": True},
        "engine": {"backend": "inline"},
    }
    parts = {"dataset": rows, "teacher": NearestMean, "student": NearestMean, "partitioner": in_turn}
    with pytest.raises(InputError, match="a patient is in more than 1 party") as refused:
        simulate(values, run_dir=tmp_path / "run", quiet=True, **parts)
    assert refused.value.exit_code == 2
    assert not list(tmp_path.rglob("ledger.sqlite"))
    declared = {**values, "privacy": {"allow_weak": True, "hospitals_per_patient": EACH}}
    ran = simulate(declared, run_dir=tmp_path / "run", quiet=True, **parts)
    assert ran.metrics["privacy"]["hospitals_per_patient"] == EACH


# What nothing names is no unit, and what cannot be compared no bound.


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        (
            {"data": {"dataset": "glyph"}, "privacy": {"unit": "patient"}},
            "privacy.unit .* is 'patient': record or hospital",
        ),
        ({"data": {"dataset": "glyph"}, "privacy": {"hospitals_per_patient": 2}}, "names patients"),
        ({"privacy": {"unit": "record", "hospitals_per_patient": 2}}, "is 2: 1, or unit"),
        ({"privacy": {"unit": "hospital", "hospitals_per_patient": 2}}, "is 2: 1, or unit"),
        ({"privacy": {"hospitals_per_patient": 41}}, "at most 40"),
        ({"privacy": {"hospitals_per_patient": 0}}, "hospitals_per_patient"),
    ],
)
def test_a_unit_that_the_study_cannot_keep_is_refused(sections: dict[str, Any], named: str) -> None:
    of_images = {"teacher": {"name": "hog-linear"}, "student": {"name": "encoder-head"}}
    with pytest.raises(InputError, match=named):
        make_study(**{**(of_images if "data" in sections else {}), **sections})


def test_own_data_that_name_nobody_have_no_unit_patient() -> None:
    for privacy in ({"unit": "patient"}, {"hospitals_per_patient": 2}):
        with pytest.raises(InputError, match="nothing in these data names patients"):
            terms_of(make_study(privacy=privacy), data(patients=None))


def test_terms_hold_a_unit_against_their_table() -> None:
    for table, unit in ((NAMED, "patient"), (NAMED, "record"), (UNNAMED, "record")):
        assert vary(make_terms(), image_shape=(1,), table=table, unit=unit).privacy.unit == unit
    with pytest.raises(InputError, match="names no patients"):
        vary(make_terms(), image_shape=(1,), table=UNNAMED, unit="patient")
    # Hospitals cannot compare their patients: it is assumed of them, and said.
    apart = vary(make_terms(), image_shape=(1,), table=NAMED, unit="patient", hospitals_per_patient=2)
    assert apart.privacy.hospitals_moved == 2
    with pytest.raises(InputError, match="'auto'"):  # what is agreed to is said
        vary(make_terms(), unit="auto")
    with pytest.raises(InputError, match="hospitals_per_patient"):
        vary(make_terms(), unit="patient", hospitals_per_patient=11)


# What ε is stated for.


def test_ε_is_for_the_declared_number_whatever_the_data_hold() -> None:
    found = []
    for most in (1, 2, 5):
        study = make_study(privacy={"hospitals_per_patient": most})
        stated = {worst_epsilon(terms_of(study, data(owners=spread(held))))[0] for held in range(1, most + 1)}
        assert len(stated) == 1
        found.append(stated.pop())
        mechanism = GNMax(num_teachers=PARTIES, num_classes=3, sigma=8.0)
        moved = Protection(unit="patient", votes_moved=most, hospitals=most)
        assert found[-1] == capped_cost_epsilon(mechanism.cost(4, 4, moved), 1e-5)
    one, two, five = found
    assert one is not None and two is not None and five is not None
    # Votes moved at once, by their own supremum: above what one costs, and no more than their totals.
    assert (
        one
        < two
        < five
        < capped_cost_epsilon(
            GNMax(num_teachers=PARTIES, num_classes=3, sigma=8.0)
            .cost(4, 4, Protection(unit="patient", votes_moved=5))
            .as_totals,
            1e-5,
        )
    )
    each = make_study(privacy={"unit": "record"})
    assert worst_epsilon(terms_of(each, data()))[0] == one


@pytest.mark.parametrize(
    ("aggregation", "secrecy"),
    [
        ({"aggregator": "confident-gnmax", "threshold": 30.0, "sigma1": 20.0, "sigma2": 8.0}, {}),
        ({"aggregator": "lnmax", "sigma2": 6.0}, {}),
        ({"aggregator": "gnmax", "sigma2": 8.0}, MASKS),
        ({"aggregator": "gnmax", "sigma2": 8.0}, HOSPITAL_NOISE),
    ],
)
def test_a_patient_in_several_parties_is_charged_for_all_its_votes(
    aggregation: dict[str, Any], secrecy: dict[str, Any]
) -> None:
    def terms(**privacy: Any) -> Terms:
        made = make_study(aggregation=aggregation, secrecy=secrecy, privacy=privacy)
        return terms_of(made, data(owners=spread(1)))

    one, three, record = terms(), terms(hospitals_per_patient=3), terms(unit="record")
    assert worst_epsilon(one) == worst_epsilon(record)
    for stated, once in zip(worst_epsilon(three), worst_epsilon(one), strict=True):
        assert (stated is None) == (once is None) and (stated is None or once is None or stated > 1.5 * once)
    fixed = three.ledger_terms(noise="n", private=True)
    assert fixed.protection == Protection(unit="patient", votes_moved=3, hospitals=3)
    assert (
        fixed.protects == "one patient replaced at each of up to 3 hospitals (up to 3 votes of a query move)"
    )


def test_teachers_count_where_a_patient_comes_or_goes() -> None:
    usual = {"unit": "patient", "hospitals_per_patient": 3, "teachers_per_client": 4}
    replaced = make_terms(**usual).ledger_terms(noise="n", private=True)
    comes = make_terms(**usual, adjacency="add-or-remove-one").ledger_terms(noise="n", private=True)
    assert (replaced.protection.votes_moved, comes.protection.votes_moved) == (6, 3)
    assert (replaced.protection.hospitals, comes.protection.hospitals) == (3, 3)


def test_nothing_is_sanitised_for_a_patient_in_several_parties() -> None:
    terms = make_terms(unit="patient", hospitals_per_patient=2, sanitise=True)
    with pytest.raises(InputError, match="one moved vote"):
        terms.ledger_terms(noise="n", private=True)


def test_class_sums_reckon_with_every_party_of_a_patient() -> None:
    one, three = make_sum_terms(unit="patient"), make_sum_terms(unit="patient", hospitals_per_patient=3)
    record, hospital = make_sum_terms(), make_sum_terms(unit="hospital", most_units=3)
    assert worst_epsilon(one) == worst_epsilon(record)
    assert worst_epsilon(three) == worst_epsilon(hospital)
    told = three.ledger_terms(noise="n", private=True).protects
    assert "one patient replaced" in told and "together at each of up to 3 hospitals" in told


def test_sums_of_a_patient_in_several_parties_move_no_farther_than_is_charged() -> None:
    """Every party clips its own part of a patient: the worst that random and greedy records do."""
    features = build_feature_map(
        FeatureSettings(name="bins", columns=(1,), bins=4), np.linspace(0, 1, 40)[:, None]
    )
    rng = np.random.default_rng(5)
    parties, radius = 3, features.squared_norm
    farthest = 0.0
    for trial in range(60):
        found = []
        for _ in range(2):
            count = int(rng.integers(1, 9))
            value = rng.uniform(0, 1, (count, 1)) if trial % 2 else np.full((count, 1), rng.uniform())
            labels = np.full(count, rng.integers(0, 3)) if trial % 2 == 0 else rng.integers(0, 3, count)
            own = features.contributions(value, labels, num_classes=3, groups=np.zeros(count, dtype=np.int64))
            found.append(parties * own)  # the same at each of them: nothing is farther
        moved = int(((found[0] - found[1]) ** 2).sum())
        farthest = max(farthest, moved / (2 * parties**2 * radius))
    assert 0.8 < farthest <= 1


def test_a_kind_of_ones_own_has_no_bound_for_several_parties() -> None:
    study = make_study(
        aggregation={
            "aggregator": "auto",
            "sigma2": None,
            "kind": "own_kind:Median",
            "parameters": {"bins": 8, "scale": 8.0},
        },
        secrecy=MASKS,
        queries={"labels": None, "max_queries": None},
        privacy={"hospitals_per_patient": 2},
    )
    with pytest.raises(InputError, match=r"no bound is known for a patient at several hospitals"):
        terms_of(study, data(owners=spread(2)))
    alone = replace(study, privacy=replace(study.privacy, hospitals_per_patient=1))
    assert terms_of(alone, data(owners=spread(1))).privacy.unit == "patient"


# What a patient sways: parts of teachers, held against what is charged.


def _teachers(study: Study, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What each teacher learns from, as comparable values."""
    found = []
    monkeypatch.setattr(Site, "dataset", property(lambda site: dataset))
    dealt = deal_records(study, dataset)
    monkeypatch.setattr(Site, "own_records", lambda site: dealt[site.number])
    for number in range(study.parties.num_clients):
        site = Site(party=f"p{number}", number=number, state_dir=Path("none"), simulated=True, study=study)
        for part in site.teacher_parts():
            found.append(
                sorted(
                    zip(
                        dataset.private_images[part].tolist(),
                        dataset.private_labels[part].tolist(),
                        strict=True,
                    )
                )
            )
    return found


@pytest.mark.parametrize(("most", "teachers"), [(1, 1), (1, 2), (2, 2), (3, 1)])
def test_a_replaced_patient_sways_as_many_teachers_as_are_charged(
    most: int, teachers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = None if most == 1 else spread(most)
    study = make_study(parties={"teachers_per_client": teachers}, privacy={"hospitals_per_patient": most})
    before = data(owners=owners)
    study = fix_unit(study, before)
    charged = study.privacy.votes_moved(teachers)
    assert charged == most * min(teachers, 2)
    first, swayed = _teachers(study, before, monkeypatch), []
    for patient in range(0, PATIENTS, 7):
        other = rows(owners=owners)
        other["private_images"] = np.where((patient == OF)[:, None], 0.9, other["private_images"])
        other["patients"] = np.where(patient == OF, 1000 - patient, OF)
        after = as_dataset(other, what="d", name="m:load")
        second = _teachers(study, after, monkeypatch)
        swayed.append(sum(one != two for one, two in zip(first, second, strict=True)))
    assert max(swayed) == charged and min(swayed) >= most
    # With records as the unit such a patient sways more than the one vote that is charged.
    each = replace(study, privacy=replace(study.privacy, unit="record", hospitals_per_patient=1))
    assert each.privacy.votes_moved(teachers) == min(teachers, 2)
    first, second = _teachers(each, before, monkeypatch), _teachers(each, after, monkeypatch)
    assert sum(one != two for one, two in zip(first, second, strict=True)) > 1


# What is said, and checked afterwards.


def test_what_a_unit_means_is_said_once_and_everywhere_alike(tmp_path: Path) -> None:
    table = {"image_shape": (1,), "table": NAMED}
    by_patient, by_record = (vary(make_terms(), **table, unit=unit) for unit in ("patient", "record"))
    assert by_record.words.unit == "one record; a patient with several is protected less"
    together = "all records of one patient at a hospital together"
    assert by_patient.words.unit == f"{together}, for patients who were at one of these hospitals only"
    three = make_terms(unit="patient", hospitals_per_patient=3).words.unit
    assert three.endswith("at a hospital together, for patients who were at up to 3 of these hospitals")
    for terms in (by_patient, by_record):
        page = make_page(terms)
        said = dict(dict(page.sections)["what it can cost"])["unit"]
        assert said == f"{terms.privacy.unit.capitalize()} means {terms.words.unit}."
        assert page.values["epsilon"]["unit_means"] == terms.words.unit
    assert dict(by_record.words.reads)["patient"].endswith("Each row counts by itself.")
    assert "Each row" not in dict(by_patient.words.reads)["patient"]
    assert by_record.words.records_apart is False  # one teacher a hospital
    assert vary(by_record, teachers_per_client=2).words.records_apart
    assert not vary(by_patient, teachers_per_client=2).words.records_apart


@pytest.mark.parametrize("secrecy", [{}, MASKS, HOSPITAL_NOISE], ids=["plain", "masks", "hospitals' noise"])
def test_a_whole_run_states_charges_and_verifies_a_patient(secrecy: dict[str, Any], tmp_path: Path) -> None:
    values = {
        "study": {"seed": 4},
        "parties": {"num_clients": 8},
        "aggregation": {"aggregator": "gnmax", "sigma2": 6.0},
        "queries": {"labels": 20, "max_queries": 20},
        "privacy": {"allow_weak": True, "hospitals_per_patient": 2},
        "secrecy": secrecy,
        "engine": {"backend": "inline"},
    }
    owners = (OF + np.arange(len(OF)) % 2) % 8
    run = simulate(
        values,
        run_dir=tmp_path / "run",
        quiet=True,
        dataset=lambda: rows(owners=owners),
        teacher=NearestMean,
        student=NearestMean,
    )
    privacy = json.loads((tmp_path / "run" / "metrics.json").read_text())["privacy"]
    assert (privacy["unit"], privacy["hospitals_per_patient"]) == ("patient", 2)
    assert privacy["unit_means"].endswith("were at up to 2 of these hospitals")
    assert 'unit = "patient"' in (tmp_path / "run" / "study.toml").read_text()
    chain = verify_run(tmp_path / "run").chain
    assert chain.terms.protection == Protection(unit="patient", votes_moved=2, hospitals=2)
    assert {entry.event.protection for entry in chain.entries} == {chain.terms.protection}
    assert "at each of up to 2 hospitals" in chain.terms.protects
    changed = tmp_path / "run" / "metrics.json"
    whole = changed.read_text()
    changed.write_text(whole.replace('"hospitals_per_patient": 2', '"hospitals_per_patient": 3'))
    with pytest.raises(IntegrityError, match="hospitals_per_patient: 3, by the ledger 2"):
        verify_run(tmp_path / "run")
    changed.write_text(whole)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "a patient with records at more than 2 hospitals is protected less" in page
    assert run.metrics["privacy"]["student"]["data_independent"] > 0


def test_the_example_of_a_kind_reckons_with_a_patient_and_not_with_a_hospital() -> None:
    for unit, bounded in (("record", True), ("patient", True), ("hospital", False)):
        sensitivity = type("S", (), {"unit": unit})()
        assert np.isfinite(Median().rdp(2.0, sensitivity)) is np.bool_(bounded)
