"""The terms that a study's authority signs, from its study.toml and its public pool."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from pate_fed.errors import IntegrityError
from pate_fed.protocol import Agreed, Terms
from pate_fed.study import load_study, study_from_dict
from pate_fed.study_data import load_study_data

__all__ = ["make_terms_of", "read_terms"]


def read_terms(text: str) -> Agreed:
    """The terms in a canonical JSON: of a study with votes, or of one of private labels.

    Raises:
        IntegrityError: they are of neither.
    """
    try:
        return Terms.from_json(text)
    except IntegrityError:
        from pate_fed.label_dp.terms import LabelTerms

        return LabelTerms.from_json(text)


def make_terms_of(config: Path, *, num_hospitals: int | None = None) -> str:
    """The canonical JSON of a study's terms; `num_hospitals` as the coordinator will be told.

    Raises:
        InputError: the study or its public pool cannot be used.
    """
    values = load_study(config)
    parties = values.get("parties", {})
    if num_hospitals is not None and isinstance(parties, dict):
        values["parties"] = {**parties, "num_clients": num_hospitals}
    study = study_from_dict(values).resolve()
    # The coordinator is named, as Flower names apps: pate_fed imports neither party.
    return str(import_module("server.terms").make_terms(study, load_study_data(study)).to_json())
