"""The picture of who sees what in a study: stations, what goes from each to the next, the bounds there."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.format import counted
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.votes import VoteTerms
from pate_fed.report.result import LabelStudyRecord, RunResult, StudyRecord
from pate_fed.report.terms_text import IN_ONE_PLACE
from pate_fed.report.text import SUMMED, guarantees


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Who holds what: `icon` is the template's picture, `sends` what goes on to the next station.

    `bound` is the ε against whoever stands here, of `kind` finite, none or broken; empty for hospitals.
    """

    icon: str
    name: str
    holds: str
    sends: str = ""
    bound: str = ""
    kind: str = ""


def flow_of(result: RunResult) -> list[Station]:
    """The stations of this study, from the records to whoever gets the student."""
    study, rows = result.study, guarantees(result)
    middle, public = rows[1], rows[0]
    if isinstance(study, LabelStudyRecord):
        home, coordinator = _labels(study)
    else:
        home, coordinator = _hospitals(study)
    labels = counted_labels(result)
    return [
        home,
        Station(
            icon="server",
            name=middle.against,
            holds=f"sees {_lower(middle.sees)}",
            sends=coordinator,
            bound=middle.bound,
            kind=middle.kind,
        ),
        Station(
            icon="people",
            name="Anyone",
            holds=f"gets {labels} and the student",
            bound=public.bound,
            kind=public.kind,
        ),
    ]


def _hospitals(study: StudyRecord) -> tuple[Station, str]:
    """The hospitals of votes or class sums, and what the coordinator releases."""
    terms = study.terms
    name = f"{terms.num_clients:,} hospital{'' if terms.num_clients == 1 else 's'}"
    if isinstance(terms.asks, SumTerms):
        noise = ", with noise added at home" if terms.adds_noise else ""
        released = "sums with noise" if terms.adds_noise else "sums, after noise is added"
        home = Station(
            icon="house", name=name, holds="keep records and each one's own sums", sends=f"masked sums{noise}"
        )
        return home, f"{released}, once"
    way = {
        "plain": "votes on public inputs, as they are",
        "secure-sum": "masked votes: only their sum can be read",
        "hospital-noise": "masked votes with noise added at home",
    }.get(study.coordinator, "votes on public inputs")
    each = counted(VoteTerms.of(terms).teachers_per_client, "teacher")
    home = Station(
        icon="house", name=name, holds=f"keep records and {each} each, whose weights never leave", sends=way
    )
    asked = "noise on every answer" if study.coordinator != "hospital-noise" else "noisy answers"
    threshold = "" if study.threshold is None else "; too little agreement, no answer"
    return home, f"{asked}{threshold}"


def _labels(study: LabelStudyRecord) -> tuple[Station, str]:
    """Whoever has the private labels of public features, and what leaves whoever runs the study."""
    if study.coordinator == IN_ONE_PLACE:
        home = Station(icon="house", name="One place", holds="has all labels", sends="its own labels")
        return home, "labels with noise"
    name = f"{study.num_clients:,} hospitals"
    way = "masked counts with noise" if study.coordinator == SUMMED else "labels with noise added at home"
    return Station(icon="house", name=name, holds="keep their own labels", sends=way), "noisy labels"


def counted_labels(result: RunResult) -> str:
    """How many labels were released, in words."""
    answered = result.queries_answered
    return f"{answered:,} label{'' if answered == 1 else 's'}" if answered else "labels"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
