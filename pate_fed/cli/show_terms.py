"""The terms that a study's authority signs, from its study.toml and its public pool."""

from __future__ import annotations

from pathlib import Path

from pate_fed.config.data import load_study_data
from pate_fed.config.study import read_study
from pate_fed.errors import IntegrityError
from pate_fed.format import epsilon_text
from pate_fed.protocol.agreed import Agreed
from pate_fed.protocol.make_terms import make_terms
from pate_fed.protocol.messages import Terms

__all__ = ["cost_text", "make_terms_of", "read_terms"]


def read_terms(text: str) -> Agreed:
    """The terms in a canonical JSON: of a study with votes, or of one of private labels.

    Raises:
        IntegrityError: they are of neither.
    """
    try:
        return Terms.from_json(text)
    except IntegrityError:
        from pate_fed.protocol.label_terms import LabelTerms

        return LabelTerms.from_json(text)


def cost_text(text: str) -> str:
    """What a hospital agrees to with these terms, and what that costs at most, before it connects.

    Raises:
        IntegrityError: they are no terms.
        InputError: terms that no study has.
    """
    from pate_fed.protocol.cost import worst_epsilon
    from pate_fed.protocol.label_terms import LabelTerms

    terms = read_terms(text)
    if isinstance(terms, LabelTerms):
        cost = f"ε={epsilon_text(terms.spent)} δ={terms.delta:g} against the coordinator and the public"
        return f"{terms.study!r}: private labels by {terms.mechanism}, once: {cost}, for one record's label"
    if not isinstance(terms, Terms):
        raise IntegrityError("terms of an unknown kind")
    public, coordinator = (
        "no bound" if epsilon is None else f"ε={epsilon_text(epsilon)}" for epsilon in worst_epsilon(terms)
    )
    return (
        f"{terms.study!r}: up to {terms.max_queries} queries, {terms.labels} labels; at δ={terms.delta:g} "
        f"{public} against the public, {coordinator} against the coordinator, for one {terms.privacy.unit}"
    )


def make_terms_of(config: Path, *, num_hospitals: int | None = None) -> str:
    """The canonical JSON of a study's terms; `num_hospitals` as the coordinator will be told.

    Raises:
        InputError: the study or its public pool cannot be used.
    """
    study = read_study(config, num_hospitals=num_hospitals).resolve()
    return make_terms(study, load_study_data(study)).to_json()
