"""A study's terms in words: who asks, what is read, what leaves the house, who sees it, what it can cost.

The page is for a hospital that has agreed to nothing yet. Its texts come from others: nothing in them steers
the terminal.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pate_fed.config.about import About
from pate_fed.data import Schema
from pate_fed.format import counted, delta_text, epsilon_json, epsilon_text, printable
from pate_fed.identity import Admission
from pate_fed.identity.certificates import spoken
from pate_fed.kinds.guarantee import worst_epsilon
from pate_fed.kinds.labels import LabelTerms
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.votes import VoteTerms, protection_of
from pate_fed.privacy.protection import LABEL, Assumptions
from pate_fed.structure import to_plain

_WIDTH, _NAMES = 80, 12
_NOT_STATED = "not stated"
_MOST_NAMES = 60  # of columns or classes that are listed
_ABOUT = ("requester", "purpose", "legal_basis", "contact", "retention")
_LARGE = 18.0  # e to the power of it is beyond what a factor tells anyone


@dataclass(frozen=True, slots=True, kw_only=True)
class TermsPage:
    """A study's terms in sections of (name, sentence), and as plain values for JSON."""

    title: str
    sections: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    values: dict[str, Any]

    def lines(self) -> Iterator[str]:
        """The page as text of at most 80 columns, every word of others made printable."""
        yield printable(self.title)
        for heading, facts in self.sections:
            yield ""
            yield heading.upper()
            for name, sentence in facts:
                yield from _fact(printable(name), sentence)


def _fact(name: str, sentence: str) -> Iterator[str]:
    """A name and its sentence; further lines of it, as of a picture, stay lines of their own."""
    left = f"  {name:<{_NAMES}}  "
    for part in sentence.split("\n"):
        room = _WIDTH - len(left)
        for line in textwrap.wrap(printable(part), room, break_on_hyphens=False) or [""]:
            yield (left + line).rstrip()
            left = " " * len(left)


def make_page(
    terms: Terms | LabelTerms,
    *,
    admission: Admission | None = None,
    preview: str | None = None,
) -> TermsPage:
    """The page of a study's terms; `admission` is what carried them, with its signature checked before.

    `preview` shows the public pool, where a copy of it is there.

    Raises:
        InputError: terms that no study has.
    """
    about = terms.about if isinstance(terms, Terms) else About()
    asks = [(name.replace("_", " "), getattr(about, name) or _NOT_STATED) for name in _ABOUT]
    if admission is not None:
        asks += [
            ("hospital", admission.hospital),
            ("coordinator", f"at {admission.address}"),
            ("authority", _in_two_lines(admission.fingerprint)),
        ]
    signed = "Signed by the authority." if admission is not None else "Not signed: a file of terms alone."
    asks.append(("terms", f"{signed} Their SHA-256:\n{terms.digest}"))
    told = _told(terms)
    pool = preview or (
        "No copy is here. The coordinator sends one, which is held against this SHA-256; --pool FILE shows a "
        "copy of yours."
    )
    inputs = [
        ("pool", f"{counted(terms.pool_size, 'public input')}, the same for every hospital."),
        ("SHA-256", terms.pool_digest),
        ("preview", pool),
    ]
    return TermsPage(
        title=f"The study {terms.study or 'without a name'}: what you would agree to",
        sections=(
            ("who asks", tuple(asks)),
            ("what it reads of your records", _reads(terms)),
            ("what it asks about", tuple(inputs)),
            ("teachers", _teachers(terms)),
            ("what leaves the house", told[0]),
            ("who sees it", told[1]),
            ("what it can cost", _cost(terms)),
            ("its limits", _caps(terms)),
        ),
        values=_values(terms, about, admission=admission, told=told),
    )


def _in_two_lines(fingerprint: str) -> str:
    half = len(fingerprint) // 2
    shown = f"{spoken(fingerprint[:half])}-\n{spoken(fingerprint[half:])}"
    return f"Its fingerprint, to compare by telephone:\n{shown}"


def _reads(terms: Terms | LabelTerms) -> tuple[tuple[str, str], ...]:
    if isinstance(terms, LabelTerms):
        classes = _listed(list(terms.classes)) if terms.classes else f"numbers 0 to {terms.num_classes - 1}"
        return (
            ("records", "A table of two columns: index, a public input's place, and label, its class."),
            ("classes", classes),
        )
    classes = _listed(list(terms.classes)) if terms.classes else f"{terms.num_classes} without names"
    if terms.table is None:
        size = "×".join(map(str, terms.image_shape))
        return (("images", f"Images of {size} and the class of each."), ("classes", classes))
    table = terms.table
    learnt = (
        "which teachers learn to tell"
        if not isinstance(terms.asks, SumTerms)
        else "by which features are summed"
    )
    found = [
        ("columns", f"{counted(len(table.columns), 'column')}, and no other: {_listed(_columns(table))}"),
        ("label", f"The column {table.label}, {learnt}."),
        ("classes", classes),
    ]
    if table.patient is not None:
        found.append(
            (
                "patient",
                f"The column {table.patient} says which rows are one patient's. It is not learnt from.",
            )
        )
    return tuple(found)


def _columns(table: Schema) -> list[str]:
    return [name if not values else f"{name} ({_listed(list(values))})" for name, values in table.columns]


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more (--format json has all)" if more > 0 else "")


def _teachers(terms: Terms | LabelTerms) -> tuple[tuple[str, str], ...]:
    if isinstance(terms, LabelTerms) or isinstance(terms.asks, SumTerms):
        return (("none", "Nothing is trained at your hospital."),)
    votes = VoteTerms.of(terms)
    count, teacher = votes.teachers_per_client, votes.teacher
    size = f", of {counted(teacher.trees, 'tree')} each" if terms.table is not None else ""
    parts = "It learns from all your records."
    one = "patient" if terms.names_patients else "record"
    if count > 1:
        parts = f"Each learns from an equal part of your {one}s. No {one} teaches two."
        parts += "" if terms.names_patients else " A patient with several records may."
    number = f"{count} at your hospital, {terms.num_teachers} in the study."
    if votes.records_per_teacher is not None:
        number = (
            f"One for every {votes.records_per_teacher} of your {one}s, at most {count}; at most "
            f"{terms.num_teachers} in the study."
        )
    return (
        ("number", number),
        ("kind", f"{teacher.name}{size}. {parts}"),
        ("where", "They are trained on your machine and stay on its disk."),
    )


Told = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]


def _told(terms: Terms | LabelTerms) -> Told:
    """What leaves a hospital, and who sees it."""
    if isinstance(terms, LabelTerms):
        return _of_labels(terms)
    return _of_votes(terms) if not isinstance(terms.asks, SumTerms) else _of_sums(terms, SumTerms.of(terms))


_ALSO = (
    "The hospital's name, its public keys, that it agrees, and a code where it refuses. No record, no "
    "model, no file name, no text of an error."
)
_PUBLIC = "Whoever gets the labels or the student sees the outcome of noisy votes."


def _of_votes(terms: Terms) -> Told:
    """What leaves a hospital in a study with votes, and who sees it."""
    row = (
        f"For each question one row of {terms.num_classes} whole numbers: how many of your teachers vote for "
        f"each class. A row sums to {_sum_of_row(terms)}."
    )
    many = f"at least {terms.least_clients} hospitals"
    if not terms.secure_sum:
        how = "The rows leave as they are: without masks and without noise."
        sees = "Sees your hospital's own votes on every question."
    elif not terms.adds_noise:
        how = "The rows leave under masks: each by itself is random numbers."
        sees = f"Sees the exact sum over {many} for each question. Never your hospital's own votes."
    else:
        how = "Your machine adds noise first. The rows then leave under masks: each is random numbers."
        sees = f"Sees noisy sums over {many}. Neither exact sums nor your hospital's own votes."
    leaves = (("votes", row), ("how", how), ("also", _ALSO))
    return leaves, (("coordinator", sees), ("hospitals", "See nothing of your votes."), ("public", _PUBLIC))


def _of_sums(terms: Terms, sums: SumTerms) -> Told:
    """What leaves a hospital in a study of class sums, and who sees it."""
    kind = "public features of a row" if terms.table is not None else "public features of an image"
    one = "patient's" if terms.names_patients else "record's"
    what = (
        f"Once, one table of {sums.dimension:,} rows and {terms.num_classes} columns of whole numbers: for "
        f"each feature and class the sum over your records. The features are {kind}. Your own program makes "
        f"them, by a public file with this SHA-256:\n{sums.features}\n"
        f"One {one} part in the sum is cut to a fixed length."
    )
    many = f"at least {terms.least_clients} hospitals"
    if terms.adds_noise:
        how = "Your machine adds noise first. The table then leaves under masks: each is random numbers."
        sees = f"Sees noisy sums over {many}. Neither exact sums nor your hospital's own."
    else:
        how = "The table leaves under masks: each is random numbers. The coordinator adds the noise."
        sees = (
            f"Sees the exact sums over {many}: how many of all records have a class and a feature, also "
            "where that is a single one. Never your hospital's own sums."
        )
    leaves = (("sums", what), ("how", how), ("also", _ALSO))
    public = "Whoever gets the labels or the student sees what was made of the noisy sums."
    return leaves, (("coordinator", sees), ("hospitals", "See nothing of your sums."), ("public", public))


def _sum_of_row(terms: Terms) -> str:
    if VoteTerms.of(terms).records_per_teacher is None:
        return f"{VoteTerms.of(terms).teachers_per_client}"
    told = "" if terms.secure_sum else ", which tells the coordinator roughly how many patients you have"
    return f"the number of your teachers{told}"


def _of_labels(terms: LabelTerms) -> Told:
    """What leaves a hospital in a study of private labels, and who sees it."""
    if terms.secure_sum:
        what = f"Counts of your labels in {terms.num_clusters} public clusters: with your noise, under masks."
        sees = f"Sees noisy sums over at least {terms.least_clients} hospitals. Never your own counts."
    else:
        what = "Your labels after randomised response: chance changes each on your machine first."
        sees = "Sees these changed labels, and which public inputs are yours."
    leaves = (("labels", what), ("also", _ALSO))
    public = "Whoever gets the labels or the student sees what was made of these."
    return leaves, (("coordinator", sees), ("hospitals", "See nothing of your labels."), ("public", public))


def _epsilons(terms: Terms | LabelTerms) -> tuple[float | None, float | None]:
    return (terms.spent, terms.spent) if isinstance(terms, LabelTerms) else worst_epsilon(terms)


def _cost(terms: Terms | LabelTerms) -> tuple[tuple[str, str], ...]:
    public, coordinator = _epsilons(terms)
    protects = _protects(terms)
    found = [
        ("protected", f"{protects[0].upper()}{protects[1:]}."),
        ("public", _bound(public, terms.delta, "no bound")),
        ("coordinator", _bound(coordinator, terms.delta, "No bound: what it sees has no noise.")),
    ]
    if terms.adds_noise:
        may = f"at most {counted(terms.colluders, 'hospital')} may" if terms.colluders else "no hospital will"
        found.append(("reckons", f"Each ε reckons that {may} tell the coordinator what noise it added."))
    if public is not None:
        found.append(("in words", _in_words(public, terms.delta)))
    if assumed := _assumptions(terms):
        found.append(("claimed", f"NOT PROVEN: {assumed.warning}."))
    if terms.seed is not None:
        found.append(("seeded", "NOT PRIVATE: the noise is seeded. Who knows the seed takes it away again."))
    return tuple(found)


def _assumptions(terms: Terms | LabelTerms) -> Assumptions:
    return terms.assumptions() if isinstance(terms, Terms) else Assumptions()


def _protects(terms: Terms | LabelTerms) -> str:
    """The unit and the adjacency as part of a sentence."""
    if isinstance(terms, LabelTerms):
        return LABEL.text()
    if not isinstance(terms.asks, SumTerms):
        return protection_of(terms).text()
    return terms.ledger_terms(noise="as agreed", private=terms.seed is None).protects


def _bound(epsilon: float | None, delta: float, otherwise: str) -> str:
    if epsilon is None:
        return otherwise
    return (
        f"At most ε = {epsilon_text(epsilon)} at δ = {delta_text(delta)}."
        if delta
        else (f"At most ε = {epsilon_text(epsilon)} at δ = 0.")
    )


def _in_words(epsilon: float, delta: float) -> str:
    if epsilon > _LARGE:
        return "This ε promises nothing that could be put in words."
    factor = math.ceil(math.exp(epsilon) * 10) / 10
    but = f", but for a chance of {delta_text(delta)}" if delta else ""
    return f"Such a change makes whatever is published at most {factor:,.4g} times as likely{but}."


def _caps(terms: Terms | LabelTerms) -> tuple[tuple[str, str], ...]:
    counts = f"At least {terms.least_clients} of {terms.num_clients} must answer, or nothing is released."
    if isinstance(terms, LabelTerms):
        once = "Your hospital answers about its labels once. Under other terms it does not answer again."
        return (("answers", once), ("hospitals", counts))
    if isinstance(terms.asks, SumTerms):
        once = "Your hospital gives its sums once. In this study it does not give them again."
        return (
            ("answers", once),
            ("labels", f"Made of the sums for {terms.labels} inputs of the pool's {terms.pool_size}."),
            ("hospitals", counts),
        )
    labels = min(terms.labels, terms.max_queries)
    found = [
        ("questions", f"At most {terms.max_queries} of the pool's {terms.pool_size}. Each is answered once."),
        ("labels", f"At most {labels} are released."),
        ("hospitals", counts),
    ]
    if terms.privacy.epsilon is not None:
        budget = epsilon_text(terms.privacy.epsilon)
        found.append(("budget", f"The study stops before ε = {budget} against the public would be passed."))
    return tuple(found)


def _values(
    terms: Terms | LabelTerms, about: About, *, admission: Admission | None, told: Told
) -> dict[str, Any]:
    """The same as plain values; ε is rounded up."""
    public, coordinator = _epsilons(terms)
    stated = LABEL if isinstance(terms, LabelTerms) else terms.privacy
    teachers = None
    if isinstance(terms, Terms) and not isinstance(terms.asks, SumTerms):
        teachers = {**asdict(VoteTerms.of(terms).teacher), "count": VoteTerms.of(terms).teachers_per_client}
    table = terms.table if isinstance(terms, Terms) else None
    return {
        "study": terms.study,
        "about": asdict(about),
        "terms_digest": terms.digest,
        "signed": admission is not None,
        "hospital": None if admission is None else admission.hospital,
        "coordinator": None if admission is None else admission.address,
        "authority": None if admission is None else admission.fingerprint,
        "columns": None if table is None else [name for name, _ in table.columns],
        "label": None if table is None else table.label,
        "patient": None if table is None else table.patient,
        "classes": list(terms.classes),
        "pool": {"size": terms.pool_size, "sha256": terms.pool_digest},
        "teachers": teachers,
        "sums": None
        if not isinstance(terms, Terms) or not isinstance(terms.asks, SumTerms)
        else to_plain(SumTerms.of(terms)),
        "leaves": dict(told[0]),
        "sees": dict(told[1]),
        "epsilon": {
            "public": epsilon_json(public),
            "coordinator": epsilon_json(coordinator),
            "delta": terms.delta,
            "protects": _protects(terms),
            "unit": stated.unit,
            "adjacency": stated.adjacency,
            "colluders": terms.colluders if terms.adds_noise else None,
            "seeded": terms.seed is not None,
            "claimed_by": _assumptions(terms).sources,
        },
        "limits": {
            "max_queries": terms.max_queries,
            "labels": min(terms.labels, terms.max_queries) if isinstance(terms, Terms) else None,
            "hospitals": terms.num_clients,
            "least_hospitals": terms.least_clients,
            "epsilon": terms.privacy.epsilon if isinstance(terms, Terms) else terms.epsilon,
        },
    }
