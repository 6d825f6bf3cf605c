"""Code of others on whose word an ε rests: which, for what, and how that is said beside every ε."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pate_fed.config.parts import PartIdentity
from pate_fed.structure import check, setting

MECHANISM, FEATURE_MAP, TEACHER = "mechanism", "feature map", "teacher"

_ASSUMED = {
    MECHANISM: (
        "every ε rests on the privacy curve that {} claims for one query, and on its noise: pate_fed has not "
        "proven them"
    ),
    FEATURE_MAP: (
        "every ε rests on the word of {} that an input's features follow from that input alone: pate_fed "
        "cuts what each record adds, and has not proven that no record changes the features of others"
    ),
    TEACHER: (
        "every ε rests on the word of {} that a teacher follows from its own records alone: one process has "
        "several teachers, and pate_fed has not proven that the code passes nothing from one to another"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A part of the user's own, of a kind above, on whose word every ε of a study rests.

    Raises:
        InputError: another kind.
    """

    kind: str = setting(choices=tuple(_ASSUMED))
    part: PartIdentity

    def __post_init__(self) -> None:
        check(self)

    @property
    def warning(self) -> str:
        """What every ε of such a study must be read with, as a sentence without its full stop."""
        return _ASSUMED[self.kind].format(self.part.text)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """All of a study's, in words; false where its ε rests on nobody's word."""

    each: tuple[Assumption, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self.each)

    @property
    def names(self) -> tuple[str, ...]:
        """The code's names."""
        return tuple(one.part.name for one in self.each)

    @property
    def short(self) -> str:
        """Whose word it is, beside a single ε."""
        return f"claimed by {' and '.join(self.names)}, not proven"

    @property
    def warning(self) -> str:
        """All warnings as one sentence without its full stop."""
        return "; ".join(one.warning for one in self.each)

    @property
    def beside_records(self) -> tuple[Assumption, ...]:
        """Those about code that runs at hospitals: the ledger has a mechanism's own with its curve."""
        return tuple(one for one in self.each if one.kind != MECHANISM)

    @property
    def sources(self) -> list[dict[str, str | None]]:
        """Kind, name, version and digest of each, for JSON."""
        return [{"kind": one.kind, **asdict(one.part)} for one in self.each]
