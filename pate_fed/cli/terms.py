"""Terms at the command line: made from a study.toml, a page about them, and the pool beside it."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.local import POOL_FILE, kind_of
from clients.policy import Policy, find_policy
from clients.state_dir import find_state_dir
from pate_fed.config.data import load_study_data
from pate_fed.config.study import read_study
from pate_fed.data import Schema, pool_digest, read_pool
from pate_fed.disk import load_arrays, read_file
from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import counted, delta_text, epsilon_json, epsilon_text, printable
from pate_fed.identity import Admission
from pate_fed.identity.admission import ADMISSION_FILE
from pate_fed.kinds.make import make_terms
from pate_fed.kinds.terms import Terms, require_meaningful, worst_epsilon
from pate_fed.privacy.protection import PATIENT_UNIT, to_a_patient
from pate_fed.secure_sum import in_league, threshold_for


def cost_text(terms_json: str) -> str:
    """What a hospital agrees to with these terms, and the largest ε that they can cost it."""
    terms = Terms.from_json(terms_json)
    public, coordinator = (
        "no bound" if epsilon is None else f"ε={epsilon_text(epsilon)}" for epsilon in worst_epsilon(terms)
    )
    assumed = terms.assumptions()
    return (
        f"{terms.study!r}: {terms.words.asked}; at δ={delta_text(terms.delta)} {public} against the public, "
        f"{coordinator} against the coordinator, for one {terms.privacy.unit}"
        f"{f'; {assumed.warning}' if assumed else ''}"
    )


def make_terms_of(config: Path, *, num_hospitals: int | None = None) -> str:
    """The canonical JSON of a study's terms; `num_hospitals` as the coordinator will be told.

    Raises:
        InputError: the study or its public pool cannot be used, or its ε means almost nothing.
    """
    study = read_study(config, num_hospitals=num_hospitals).resolve()
    terms = make_terms(study, load_study_data(study))
    require_meaningful(terms, terms.ledger_terms(noise="to come", private=study.seed is None))
    return terms.to_json()


# A study's terms in words: who asks, what is read, what leaves the house, who sees it, what it can cost.
#
# The page is for a hospital that has agreed to nothing yet. Its texts come from others: nothing in them
# steers the terminal.


_WIDTH, _NAMES = 80, 12
_NOT_STATED = "not stated"
ABOUT = ("requester", "purpose", "legal_basis", "contact", "retention")
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
    policy: Policy = Policy(),  # noqa: B008  # frozen
) -> TermsPage:
    """The page of a study's terms; `admission` is what carried them, with its signature checked before.

    `preview` shows the public pool, where a copy of it is there. `policy` says who is confirmed.
    """
    about, words = terms.about, terms.words
    leaves = words.home.sends
    short = (
        ("stays", f"{words.at_home} never leave your house."),
        ("leaves", f"{leaves[0].upper()}{leaves[1:]}."),
        *words.sees,
    )
    asks = [(name.replace("_", " "), getattr(about, name) or _NOT_STATED) for name in ABOUT]
    if words.brings_student:
        whose = about.licence or _NOT_STATED
        asks.append(("student", f"It comes to every hospital that took part.\nWho may use it: {whose}."))
    if admission is not None:
        asks += [
            ("hospital", admission.hospital),
            ("coordinator", f"at {admission.address}"),
            ("authority", f"Its fingerprint, to compare by telephone:\n{admission.words}"),
        ]
    signed = "Signed by the authority." if admission is not None else "Not signed: a file of terms alone."
    asks.append(("terms", f"{signed} Their SHA-256:\n{terms.digest}"))
    sent = "The coordinator sends them" if terms.drawn else "No copy is here. The coordinator sends one"
    yours = "" if terms.drawn else "; --pool FILE shows a copy of yours"
    pool = preview or f"{sent}, held against this SHA-256{yours}."
    held = f"{counted(terms.pool_size, 'public input')}, the same for every hospital."
    if terms.drawn:
        held = f"None: {terms.pool_size:,} rows drawn from the columns' ranges, the same for every hospital."
    inputs = (("pool", held), ("SHA-256", terms.pool_digest), ("preview", pool))
    others = () if admission is None else (("the other hospitals", tuple(_others(terms, admission, policy))),)
    return TermsPage(
        title=f"The study {terms.study or 'without a name'}: what you would agree to",
        sections=(
            ("what stays, what leaves, who sees it", short),
            ("who asks", tuple(asks)),
            ("what it reads of your records", words.reads),
            ("what it asks about", inputs),
            ("teachers", words.trains),
            ("what leaves the house", words.leaves),
            *others,
            ("what it can cost", _cost(terms)),
            ("its limits", words.limits),
        ),
        values={**_values(terms, admission=admission), **_confirmations(terms, admission, policy)},
    )


def _others(terms: Terms, admission: Admission, policy: Policy) -> Iterator[tuple[str, str]]:
    """Who else takes part, as the coordinator says, who of them is confirmed, and what that protects."""
    others = terms.num_clients - 1
    for name, words in admission.hospitals.items():
        heard = policy.trusted.get(name)
        state = "not confirmed" if heard is None else "confirmed" if heard == words else "ANOTHER KEY"
        yield name, f"{words}\n{state}"
    if len(admission.hospitals) < others:
        more = counted(others - len(admission.hospitals), "hospital")
        yield "later", f"{more} more, not admitted when this admission was made."
    if terms.secure_sum:
        said = {**policy.trusted, **admission.hospitals, admission.hospital: ""}
        confirmed = sum(said[name] == words for name, words in policy.trusted.items())
        needed = policy.must_confirm(terms)
        text = f"{needed} of {others} must be confirmed before anything leaves masked; {confirmed} are."
        yield "to confirm", f"{text} Who is not may be the coordinator's invention: --confirm NAME=WORDS."
        yield "a lie", "Nobody sees numbers that one hospital made up, and these can spoil the student."
        if terms.adds_noise:
            known, own = _with_confirmed(terms, min(confirmed, others)), "all who are not tell it their noise"
            yield "coordinator", f"If {own}: {_bound(known, terms.delta, 'no bound')}"


def _confirmations(terms: Terms, admission: Admission | None, policy: Policy) -> dict[str, Any]:
    """The other hospitals as plain values; None where no admission says who they are."""
    if admission is None:
        return {"other_hospitals": None, "must_confirm": None}
    others = {
        name: {"fingerprint": words, "confirmed": policy.trusted.get(name) == words}
        for name, words in admission.hospitals.items()
    }
    return {"other_hospitals": others, "must_confirm": policy.must_confirm(terms)}


def _with_confirmed(terms: Terms, confirmed: int) -> float | None:
    """ε against the coordinator on the noise of this hospital and so many confirmed ones; None: no bound."""
    strangers = terms.num_clients - 1 - confirmed
    told = min(max(terms.colluders, strangers), terms.least_clients - 1)
    threshold = max(threshold_for(terms.num_clients), terms.least_clients)
    if strangers > in_league(terms.num_clients, threshold, terms.colluders):
        return None  # so many get two sums that differ by one hospital
    try:
        return worst_epsilon(replace(terms, secrecy=replace(terms.secrecy, colluders=told)))[1]
    except InputError:  # so little noise is left that no bound is known
        return None


_NOT_LINKED = (
    "No hospital sees where else its patients were. That nobody was at more of these hospitals is assumed, "
    "not checked; who was is protected less."
)


def _cost(terms: Terms) -> tuple[tuple[str, str], ...]:
    protects, (public, coordinator) = terms.words.protects, worst_epsilon(terms)
    found = [
        ("in short", _to_a_patient(terms)),
        ("protected", f"{protects[0].upper()}{protects[1:]}."),
        ("unit", f"{terms.privacy.unit.capitalize()} means {terms.words.unit}."),
        *(() if terms.privacy.unit != PATIENT_UNIT else (("hospitals", _NOT_LINKED),)),
        ("public", _bound(public, terms.delta, "no bound")),
        ("coordinator", _bound(coordinator, terms.delta, "No bound: what it sees has no noise.")),
    ]
    if (some := terms.secrecy.colluders) is not None:
        may = f"at most {counted(some, 'hospital')} may" if some else "no hospital will"
        found.append(("reckons", f"Each ε reckons that {may} tell the coordinator what noise it added."))
    if public is not None:
        found.append(("in words", _in_words(public, terms.delta)))
    if assumed := terms.assumptions():
        found.append(("claimed", f"NOT PROVEN: {assumed.warning}."))
    if terms.seed is not None:
        found.append(("seeded", "NOT PRIVATE: the noise is seeded. Who knows the seed takes it away again."))
    return tuple(found)


def _to_a_patient(terms: Terms) -> str:
    public, coordinator = worst_epsilon(terms)
    fixed = terms.ledger_terms(noise="as agreed", private=terms.seed is None)
    return to_a_patient(
        unit=terms.privacy.unit,
        adjacency=terms.privacy.adjacency,
        hospitals=terms.privacy.hospitals_moved,
        epsilon=None if public is None else epsilon_text(public),
        sees=fixed.coordinator.text() if coordinator is None else None,
        private=terms.seed is None,
    )


def _bound(epsilon: float | None, delta: float, otherwise: str) -> str:
    if epsilon is None:
        return otherwise
    return f"At most ε = {epsilon_text(epsilon)} at δ = {delta_text(delta)}."


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
        "label": None if table is None else table.label or None,
        "labels": [] if table is None else [name for name, _ in table.labels],
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
            "unit_means": terms.words.unit,
            "to_a_patient": _to_a_patient(terms),
            "hospitals_per_patient": terms.privacy.hospitals_moved,
            "adjacency": terms.privacy.adjacency,
            "colluders": terms.secrecy.colluders,
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


# What the public pool looks like, as a few lines of text: a table's rows, or images in shades.


_SHOWN = 3  # rows or images
_ROW_LENGTH = 180  # characters of a row
_SHADES = " .:-=+*#%@"
_TILE_ROWS, _TILE_COLUMNS, _GAP = 10, 20, 2  # characters; one is about twice as high as it is wide


def open_pool(path: Path, terms: Terms) -> NDArray[np.generic]:
    """The public inputs in a file: (n, features) or (n, height, width, channels).

    Raises:
        InputError: it cannot be read, is not the pool of these terms, or they do not say what is in it.
    """
    if not terms.asks.reads_inputs:
        raise InputError(
            f"--pool {path}: the terms of {terms.words.kind} do not say how their inputs are read"
        )
    if path.name == POOL_FILE:
        try:
            inputs: NDArray[np.generic] = load_arrays(path)[""]
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"--pool {path}: cannot be read as an array") from error
    else:
        inputs = read_pool(path, kind_of(terms)).inputs
    found = pool_digest(inputs)
    if found != terms.pool_digest:
        raise InputError(
            f"--pool {path}: its SHA-256 is {found}, the terms name {terms.pool_digest}: not the study's pool"
        )
    return inputs


def preview(path: Path, terms: Terms) -> str:
    """The first inputs of a copy of the public pool, in lines of at most 64 characters where it is images."""
    inputs = open_pool(path, terms)
    head = f"{path}: the pool of these terms. Its first {min(_SHOWN, len(inputs))}:"
    shown = np.asarray(inputs[:_SHOWN], dtype=np.float64)
    if terms.table is not None:
        return "\n".join([head, *(_row(terms.table, row) for row in shown)])
    tiles = [_tile(image) for image in shown]
    return "\n".join([head, *((" " * _GAP).join(parts) for parts in zip(*tiles, strict=True))])


def _row(table: Schema, row: NDArray[np.float64]) -> str:
    """One encoded row in words, cut where it is long."""
    said, place = [], 0
    for name, values in table.columns:
        width = max(1, len(values))
        cell, place = row[place : place + width], place + width
        said.append(f"{name} {_cell(cell, values)}")
    text = printable(", ".join(said))
    return text if len(text) <= _ROW_LENGTH else text[: _ROW_LENGTH - 1] + "…"


def _cell(cell: NDArray[np.float64], values: tuple[str, ...]) -> str:
    if not values:
        return "missing" if np.isnan(cell[0]) else f"{cell[0]:.6g}"
    return values[int(cell.argmax())] if cell.any() else "missing"


def _tile(image: NDArray[np.float64]) -> list[str]:
    """An image (height, width, channels) in shades of ten characters."""
    grey = image.mean(axis=-1) if image.ndim == 3 else image
    rows = np.arange(_TILE_ROWS) * grey.shape[0] // _TILE_ROWS
    columns = np.arange(_TILE_COLUMNS) * grey.shape[1] // _TILE_COLUMNS
    small = grey[np.ix_(rows, columns)]
    low, high = float(small.min()), float(small.max())
    shade = ((small - low) / (high - low or 1.0) * (len(_SHADES) - 1)).astype(int)
    return ["".join(_SHADES[place] for place in line) for line in shade]


def show_terms(arguments: argparse.Namespace) -> int:
    """Print a study's terms in words, or as JSON."""
    terms, admission = read_offer(Path(arguments.offer))
    pool = own_pool(terms, admission) if arguments.pool is None else Path(arguments.pool)
    shown, offer = None if pool is None else preview(pool, terms), Path(arguments.offer)
    policy = Policy.load(find_policy(None, str(offer if offer.is_dir() else offer.parent)))
    page = make_page(terms, admission=admission, preview=shown, policy=policy)
    if arguments.format == "json":
        print(json.dumps(page.values, indent=1))
    else:
        print("\n".join(page.lines()))
    return 0


def own_pool(terms: Terms, admission: Admission | None) -> Path | None:
    """The copy of the public pool that a coordinator sent before, if there is one."""
    if admission is None or not terms.asks.reads_inputs:
        return None
    with suppress(InputError):  # a user without a home has no state either
        found = find_state_dir(None, admission.hospital, terms, admission.fingerprint) / POOL_FILE
        return found if found.is_file() else None
    return None


def read_offer(path: Path) -> tuple[Terms, Admission | None]:
    """The signed terms of an admission, or of a hospital's own folder; or those in a file of terms alone."""
    if path.is_dir():
        path = path / ADMISSION_FILE
        if not path.exists():
            raise InputError(f"{path.parent}: no admission was accepted there yet: give its file")
    try:
        text = read_file(path).decode()
        values = json.loads(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict) and "certificate" in values:
        admission = Admission.read(path)
        _ = admission.terms_digest  # refuses what the authority did not sign
        return admission.study_terms, admission
    try:
        return Terms.from_json(json.dumps(values)), None
    except IntegrityError as error:
        raise InputError(
            f"{path}: neither an admission nor the terms of a study that this release knows"
        ) from error
