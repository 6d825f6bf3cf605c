"""The fixed list of reasons for which a hospital does not answer."""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """Why a hospital does not answer: the fixed list, so that no error text can carry data out."""

    TERMS = "the terms are not the ones this hospital agreed to"
    NO_POOL = "this hospital has no copy of the public pool yet"
    POOL = "the public pool is not the one in the terms"
    FUTILE = "under these terms ε would be spent for no label"
    FILE = "the public file that came is not the one in the terms, or none came"
    PART = "the code that is installed here is not the one in the terms"
    REPEATED = "a query of this batch was answered before"
    ANSWERED = "this hospital was asked about its labels before, under other terms"
    CAPS = "the batch asks more than the terms allow in all"
    NOT_READY = "no terms were agreed to yet, or nothing is ready to answer with"
    POLICY = "refused by the hospital's policy"
    POLICY_STUDY = "refused by the hospital's policy: not a study that it takes part in"
    POLICY_POOL = "refused by the hospital's policy: not a pool that it answers about"
    POLICY_CLASSES = "refused by the hospital's policy: other classes than it votes on"
    POLICY_HOSPITALS = (
        "refused by the hospital's policy: too few hospitals; a larger --quorum counts more of them"
    )
    POLICY_SECURE_SUM = (
        "refused by the hospital's policy: votes would be seen without masks; --secure-sum masks them"
    )
    POLICY_SUMS = "refused by the hospital's policy: class sums do not leave it"
    POLICY_EXACT_SUMS = (
        "refused by the hospital's policy: class sums would be read without noise; --noise-at hospitals adds "
        "it before they leave"
    )
    POLICY_TEACHER = "refused by the hospital's policy: the teacher's code is not on its list of teachers"
    POLICY_AGGREGATOR = (
        "refused by the hospital's policy: ε is claimed by a mechanism that is not on its list of aggregators"
    )
    POLICY_FEATURE_MAP = "refused by the hospital's policy: the feature map's code is not on its list"
    POLICY_KIND = "refused by the hospital's policy: the code of this kind of question is not on its list"
    POLICY_SEED = "refused by the hospital's policy: seeded noise protects nobody"
    POLICY_PUBLIC = "refused by the hospital's policy: too large an ε against the public"
    POLICY_COORDINATOR = "refused by the hospital's policy: too large an ε against the coordinator"
    POLICY_DELTA = "refused by the hospital's policy: too large a δ for a limit on ε"
    POLICY_UNIT = "refused by the hospital's policy: ε is stated for a unit (privacy.unit) not on its list"
    POLICY_ADJACENCY = (
        "refused by the hospital's policy: ε is stated for neighbours (privacy.adjacency) not on its list"
    )
    POLICY_COLLUDERS = (
        "refused by the hospital's policy: ε reckons with too few hospitals that tell the coordinator their "
        "noise; a larger secrecy.colluders counts more of them"
    )
    POLICY_CAPS = (
        "refused by the hospital's policy: the whole pool may be asked about; --max-queries below it is a cap"
    )
    POLICY_QUERIES = "refused by the hospital's policy: more queries than it answers in one study"
    POLICY_DAY = "refused by the hospital's policy: more queries than it answers in a day of one study"
    POLICY_TOTAL = "refused by the hospital's policy: too large an ε over all its studies"
    LEFT = "this hospital has left the study"
    MALFORMED = "the request is malformed"
    PLAIN = "by the study's terms answers leave this hospital masked only"
    COORDINATOR = "this hospital began the study's secure summation with another coordinator or run directory"
    VERSION = "the request speaks another version of secure summation than this hospital's program"
    DATA = "the hospital's own data cannot be used"
    LATER = "this hospital cannot do it now, as a disk is full or cannot be written, say; it is asked again"
    FAULT = "a fault at the hospital; its own log has the details"

    @property
    def is_policy(self) -> bool:
        """Whether the hospital's policy is the reason."""
        return self.name.startswith("POLICY")

    @property
    def sentence(self) -> str:
        """That the hospital refused, and why."""
        return self.value if self.is_policy else f"refused: {self.value}"
