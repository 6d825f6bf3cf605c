"""What `--aggregator auto` takes: votes, or class sums, before any data are read, and why in a sentence.

The numbers of hospitals and teachers, the budget and, where the study says it, the number of records decide;
`pate_fed.privacy.planning.choice` is the model. A setting that only one way has chooses that one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pate_fed.config.defaults import USEFUL_LABELS, Ensemble, keeps_in_proportion, useful_offer
from pate_fed.config.sections import CLASS_SUMS, VOTES
from pate_fed.config.sums import SUMS_EPSILON, Sums
from pate_fed.config.trust import AT_HOSPITALS, TrustModel
from pate_fed.errors import InputError
from pate_fed.format import counted
from pate_fed.learning import RIDGE, TABLE_STUDENTS, TABLE_TEACHERS, StudentSettings, TeacherSettings
from pate_fed.privacy.protection import LEAST_PARTIES

if TYPE_CHECKING:
    from pate_fed.config.study import Study
    from pate_fed.privacy.planning.choice import Way
    from pate_fed.privacy.planning.search import Offer

_MASKS = "they leave hospitals once, under masks and with noise (--secure-sum --noise-at hospitals)"
_RECORDS = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000}
_NOISE = ("threshold", "sigma1", "sigma2")


def fixed_way(study: Study, *, keep_student: bool = False) -> Study:
    """The study with its aggregator fixed, what that implies, and the reason.

    Class sums imply masks and noise at the hospitals and, with a default student that is not to be kept, the
    ridge student.

    Raises:
        InputError: neither way serves; the message says what would.
    """
    setting = _telling(study)
    name, why = _chosen(study) if setting is None else (setting[0], f"{setting[1]} is a setting of it")
    aggregation = replace(study.aggregation, aggregator=name)
    reason = f"aggregator {name}: {why}"
    if name == VOTES:
        return replace(study, aggregation=aggregation, reason=reason)
    secrecy = TrustModel(secure_sum=True, noise_at=AT_HOSPITALS, colluders=study.secrecy.colluders)
    if study.parties.teachers_per_client > 1:
        reason += "; no teachers are trained for it"
    student = study.student
    if not keep_student and student in (StudentSettings(), StudentSettings(name=TABLE_STUDENTS[0])):
        student = StudentSettings(name=RIDGE)
    return replace(study, aggregation=aggregation, secrecy=secrecy, student=student, reason=reason)


def _telling(study: Study) -> tuple[str, str] | None:
    """The way that a setting belongs to, and the setting; None where there is none."""
    parties, queries, aggregation = study.parties, study.queries, study.aggregation
    usual = TeacherSettings(name=TABLE_TEACHERS[0]) if study.data.table else TeacherSettings()
    given = (
        (CLASS_SUMS, f"student {RIDGE}", study.student.name == RIDGE),
        (CLASS_SUMS, "[sums]", study.sums != Sums()),
        *((VOTES, name, getattr(aggregation, name) is not None) for name in _NOISE),
        (VOTES, "labels", queries.labels is not None),
        (VOTES, "max_queries", queries.max_queries is not None),
        (VOTES, "strategy", queries.strategy != "random"),
        (VOTES, "rounds", queries.rounds is not None),
        (VOTES, "[teacher]", study.teacher != usual),
        (VOTES, "records_per_teacher", parties.records_per_teacher is not None),
        (VOTES, "sanitise", study.privacy.sanitise),
    )
    return next(((way, what) for way, what, there in given if there), None)


def _chosen(study: Study) -> tuple[str, str]:
    """The way that suits the numbers, and why.

    Raises:
        InputError: none does.
    """
    ensemble = study.ensemble()
    teachers = counted(ensemble.num_teachers, "teacher")
    if keeps_in_proportion(ensemble):
        return VOTES, f"{teachers} are enough, and no statistic of records leaves a hospital"
    offer, records = useful_offer(ensemble), known_records(study)
    refused, expected = _no_sums(study), None
    if records:
        votes, expected = _expected(study, ensemble, offer, records)
        refused = refused or (None if expected.serves else expected.rests)
        if refused is None and votes is not None and _is_clearly_better(expected, votes):
            return CLASS_SUMS, f"right in {_share(expected)}, votes in {_share(votes)}, by estimate; {_MASKS}"
    if offer is not None:
        return VOTES, (
            f"{teachers} buy {counted(offer.answered, 'label')} at ε {ensemble.budget:g}, which is enough, "
            "and no statistic of records leaves a hospital"
        )
    few = f"{teachers} buy fewer than {USEFUL_LABELS} labels by votes at ε {ensemble.budget:g}"
    if refused is None:
        known = "how many records there are is not known yet"
        estimate = known if expected is None else f"sums are right in {_share(expected)} by estimate"
        return CLASS_SUMS, f"{few}; {estimate}; {_MASKS}"
    raise InputError(
        f"--aggregator auto: nothing serves {counted(study.parties.num_clients, 'hospital')}: {few}, too few "
        f"to learn from, and no class sums: {refused}. Find more hospitals or more records, give a larger "
        "--epsilon, or let each hospital use its own model (`pate-fed plan` compares). --aggregator gnmax "
        "votes all the same"
    )


def _no_sums(study: Study) -> str | None:
    """Why there can be no class sums, whatever the records are; None where there can."""
    if study.parties.num_clients < LEAST_PARTIES:
        return f"a sum under masks needs {LEAST_PARTIES} hospitals"
    if study.privacy.unit == "hospital":
        return "the unit hospital needs most_records under [sums]"
    return None


def _expected(study: Study, ensemble: Ensemble, offer: Offer | None, records: int) -> tuple[Way | None, Way]:
    """What votes, where they serve, and class sums are expected to give; simulated parties are alike."""
    from pate_fed.privacy.planning.choice import Sites, sums_way, votes_way

    sites = Sites(
        hospitals=study.parties.num_clients,
        teachers=ensemble.num_teachers,
        records=records,
        classes=ensemble.num_classes,
        epsilon=study.privacy.epsilon or SUMS_EPSILON,
        delta=study.privacy.delta,
        shift=0.0,
        protection=ensemble.protection,
    )
    return None if offer is None else votes_way(sites, offer), sums_way(sites)


def _is_clearly_better(sums: Way, votes: Way) -> bool:
    from pate_fed.privacy.planning.choice import VOTES_MAY_LOSE

    return not votes.serves or sums.expected - votes.expected > VOTES_MAY_LOSE


def _share(way: Way) -> str:
    return f"{100 * way.low:.0f} to {100 * way.high:.0f} %"


def known_records(study: Study) -> int | None:
    """Records of one hospital, as far as the study says; of files of hospitals' own nothing is known."""
    data = study.data
    whole = data.glyph.private if data.dataset == "glyph" else _RECORDS.get(data.dataset)
    return None if whole is None else whole // study.parties.num_clients
