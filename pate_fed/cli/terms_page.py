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

from pate_fed.format import counted, delta_text, epsilon_json, epsilon_text, printable
from pate_fed.identity import Admission
from pate_fed.identity.certificates import spoken
from pate_fed.kinds.guarantee import worst_epsilon
from pate_fed.kinds.terms import Terms

_WIDTH, _NAMES = 80, 12
_NOT_STATED = "not stated"
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
    terms: Terms,
    *,
    admission: Admission | None = None,
    preview: str | None = None,
) -> TermsPage:
    """The page of a study's terms; `admission` is what carried them, with its signature checked before.

    `preview` shows the public pool, where a copy of it is there.

    Raises:
        InputError: terms that no study has.
    """
    about, words = terms.about, terms.words
    asks = [(name.replace("_", " "), getattr(about, name) or _NOT_STATED) for name in _ABOUT]
    if admission is not None:
        asks += [
            ("hospital", admission.hospital),
            ("coordinator", f"at {admission.address}"),
            ("authority", _in_two_lines(admission.fingerprint)),
        ]
    signed = "Signed by the authority." if admission is not None else "Not signed: a file of terms alone."
    asks.append(("terms", f"{signed} Their SHA-256:\n{terms.digest}"))
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
            ("what it reads of your records", words.reads),
            ("what it asks about", tuple(inputs)),
            ("teachers", words.trains),
            ("what leaves the house", words.leaves),
            ("who sees it", words.sees),
            ("what it can cost", _cost(terms)),
            ("its limits", words.limits),
        ),
        values=_values(terms, admission=admission),
    )


def _in_two_lines(fingerprint: str) -> str:
    half = len(fingerprint) // 2
    shown = f"{spoken(fingerprint[:half])}-\n{spoken(fingerprint[half:])}"
    return f"Its fingerprint, to compare by telephone:\n{shown}"


def _cost(terms: Terms) -> tuple[tuple[str, str], ...]:
    protects, (public, coordinator) = terms.words.protects, worst_epsilon(terms)
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
    if assumed := terms.assumptions():
        found.append(("claimed", f"NOT PROVEN: {assumed.warning}."))
    if terms.seed is not None:
        found.append(("seeded", "NOT PRIVATE: the noise is seeded. Who knows the seed takes it away again."))
    return tuple(found)


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


def _values(terms: Terms, *, admission: Admission | None) -> dict[str, Any]:
    """The same as plain values; ε is rounded up."""
    words, table, (public, coordinator) = terms.words, terms.table, worst_epsilon(terms)
    return {
        "study": terms.study,
        "about": asdict(terms.about),
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
        "teachers": None,
        "sums": None,
        **words.values,
        "leaves": dict(words.leaves),
        "sees": dict(words.sees),
        "epsilon": {
            "public": epsilon_json(public),
            "coordinator": epsilon_json(coordinator),
            "delta": terms.delta,
            "protects": words.protects,
            "unit": terms.privacy.unit,
            "adjacency": terms.privacy.adjacency,
            "colluders": terms.colluders if terms.adds_noise else None,
            "seeded": terms.seed is not None,
            "claimed_by": terms.assumptions().sources,
        },
        "limits": {
            "max_queries": terms.max_queries,
            "labels": words.labels,
            "hospitals": terms.num_clients,
            "least_hospitals": terms.least_clients,
            "epsilon": terms.privacy.epsilon,
        },
    }
