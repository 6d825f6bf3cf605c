"""Terms at the command line: made from a study.toml, and what they cost in words."""

from __future__ import annotations

from pathlib import Path

from pate_fed.config.data import load_study_data
from pate_fed.config.study import read_study
from pate_fed.format import delta_text, epsilon_text
from pate_fed.kinds.guarantee import require_meaningful, worst_epsilon
from pate_fed.kinds.make import make_terms
from pate_fed.kinds.terms import Terms


def cost_text(terms_json: str) -> str:
    """What a hospital agrees to with these terms, and the largest ε that they can cost it.

    Raises:
        IntegrityError: they are no terms.
        InputError: terms that no study has.
    """
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
