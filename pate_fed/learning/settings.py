"""What a user may choose about teachers and students: frozen values that check themselves. No torch here."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches

from pate_fed.errors import InputError

__all__ = [
    "CLOSED_FORM",
    "NETWORKS",
    "STUDENTS",
    "TABLE_STUDENTS",
    "TABLE_TEACHERS",
    "TEACHERS",
    "EpochRecord",
    "StudentSettings",
    "TeacherSettings",
]

CLOSED_FORM: tuple[str, ...] = ("hog-linear", "encoder-head")  # fixed features, a head in closed form
TEACHERS: tuple[str, ...] = ("small-cnn", "deep-cnn", *CLOSED_FORM)
STUDENTS: tuple[str, ...] = (
    "supervised",
    "gan",
    "co-teaching",
    "pate+",
    "pate++",
    "fixmatch",
    "vat",
    "encoder-head",
)
TABLE_TEACHERS: tuple[str, ...] = ("random-forest", "gradient-boosting")
TABLE_STUDENTS: tuple[str, ...] = ("forest",)
NETWORKS: tuple[str, ...] = ("encoder", "small-cnn", "deep-cnn", "dense", "nin-cnn", "nin-cnn-wide")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSettings:
    """How one teacher is trained; the defaults suit a few hundred records on one CPU core.

    "hog-linear" and "encoder-head" are fitted in closed form and heed none of the other values; the latter
    needs the study's encoder. The learning rate is the peak of a one-cycle schedule. `epochs` is at most so
    many: a large part's training ends with the pass that reaches 600 steps. Teachers of tables use `trees`
    alone.

    Raises:
        InputError: a value is out of range; the message names the key, the value and what is allowed.
    """

    name: str = "small-cnn"
    epochs: int = 20
    batch_size: int = 30
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    label_smoothing: float = 0.1
    trees: int = 100

    def __post_init__(self) -> None:
        _choice("name", self.name, (*TEACHERS, *TABLE_TEACHERS))
        _whole("trees", self.trees)
        _whole("epochs", self.epochs)
        _whole("batch_size", self.batch_size)
        _number("learning_rate", self.learning_rate, above=0.0, below=10.0)
        _number("weight_decay", self.weight_decay, least=0.0, below=10.0)
        _number("label_smoothing", self.label_smoothing, least=0.0, below=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentSettings:
    """How the student is trained (PATE++, section III and IV; defaults suit 9,000 inputs on two CPU cores).

    `noise_rate` is β, the share of released labels that are assumed wrong; None estimates it from the labels.
    `ramp_epochs` is the 15 in R(e) = 1 - β·min(e/15, 1). `learning_rate` holds for the first half of the
    run, then falls linearly to a tenth. Predictions use weights averaged with `ema_decay` a step (0: the last
    ones).
    `network` is "encoder", a hidden layer on the study's public encoder; "small-cnn" or "deep-cnn" as
    teachers have them; or of the improved GAN: "dense" is its one for MNIST, "nin-cnn" and "nin-cnn-wide"
    those for SVHN and CIFAR-10, with a generator of deconvolutions. None is "encoder" for "fixmatch" and
    "small-cnn" for others.
    A batch has at least two images, which the generator's norms need, and never more than there are.
    `dropout` is the share of features that a discriminator drops, `input_noise` the deviation of the noise
    on its input; None takes the network's own.
    For "pate++" `count_decay` is α and `removal` is τ, the share of labels taken off after the first stage;
    None takes τ = β. It trains twice, `epochs` each time; None is 10 epochs in all.
    With `patience` a share `held_out` of the labels does not teach. A stage ends after so many epochs in
    which no more of them were met than in the best one before; the last one not worse than it by a standard
    error answers. Where the share is fewer than 10 labels, all labels teach, for all epochs; "encoder-head"
    and "forest" have none.
    "vat" is one network that small steps in the pixels must not sway (virtual adversarial training).
    "fixmatch" is one network. All labels teach it, or those of small loss where `noise_rate` is given.
    "encoder-head" fits a head on features of the public inputs in closed form; the other values are not used.
    "forest", for tables, uses `trees` alone.

    Raises:
        InputError: a value is out of range; the message names the key, the value and what is allowed.
    """

    name: str = "pate++"
    network: str | None = None
    epochs: int | None = None
    batch_size: int = 100
    learning_rate: float = 3e-3
    noise_rate: float | None = None
    ramp_epochs: int = 15
    ema_decay: float = 0.998
    dropout: float | None = None
    input_noise: float | None = None
    count_decay: float = 0.9
    removal: float | None = None
    test_every: int = 1
    trees: int = 100
    patience: int | None = None
    held_out: float = 0.1

    DEFAULT_NOISE_RATE = 0.2
    DEFAULT_EPOCHS = 10

    def __post_init__(self) -> None:
        _choice("name", self.name, (*STUDENTS, *TABLE_STUDENTS))
        if self.network is not None:
            _choice("network", self.network, NETWORKS)
        _whole("batch_size", self.batch_size, least=2)
        for key in ("ramp_epochs", "test_every", "trees"):
            _whole(key, getattr(self, key))
        for key in ("epochs", "patience"):
            if getattr(self, key) is not None:
                _whole(key, getattr(self, key))
        _number("held_out", self.held_out, above=0.0, below=1.0)
        _number("learning_rate", self.learning_rate, above=0.0, below=10.0)
        _number("ema_decay", self.ema_decay, least=0.0, below=1.0)
        if self.dropout is not None:
            _number("dropout", self.dropout, least=0.0, below=1.0)
        if self.input_noise is not None:
            _number("input_noise", self.input_noise, least=0.0, below=10.0)
        if self.noise_rate is not None:
            _number("noise_rate", self.noise_rate, least=0.0, below=1.0)
        _number("count_decay", self.count_decay, least=0.0, below=1.0)
        if self.removal is not None:
            _number("removal", self.removal, least=0.0, below=1.0)

    @property
    def built_on(self) -> str:
        """The network that it is made of."""
        return self.network or ("encoder" if self.name == "fixmatch" else "small-cnn")

    @property
    def beta(self) -> float:
        """β: the share of labels that are assumed wrong; a default where it is not given or estimated."""
        return self.DEFAULT_NOISE_RATE if self.noise_rate is None else self.noise_rate

    @property
    def tau(self) -> float:
        """τ: the share of labels that PATE++ removes."""
        return self.beta if self.removal is None else self.removal

    @property
    def co_teaching(self) -> bool:
        """Whether there are two discriminators that choose each other's samples."""
        return self.name in ("co-teaching", "pate+", "pate++")

    @property
    def generates(self) -> bool:
        """Whether there is a generator."""
        return self.name in ("gan", "co-teaching", "pate+", "pate++")

    @property
    def by_disagreement(self) -> bool:
        """Whether only samples on which the discriminators disagree have a supervised loss."""
        return self.name in ("pate+", "pate++")

    @property
    def stages(self) -> int:
        """How often the student is trained from scratch."""
        return 2 if self.name == "pate++" else 1

    @property
    def stage_epochs(self) -> int:
        """Epochs of each stage."""
        return self.DEFAULT_EPOCHS // self.stages if self.epochs is None else self.epochs

    @property
    def total_epochs(self) -> int:
        """Epochs of all stages together: the number of records, or the most where `patience` is set."""
        return 1 if self.name in CLOSED_FORM else self.stage_epochs * self.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """One epoch of a student, counted from 1 through all stages. Losses are means over the epoch's batches.

    `kept_share` is the part of the labelled samples whose supervised loss was used; `disagreements` the
    labelled samples (duplicates counted) on which the two discriminators disagreed, None with one of them;
    `disputed_wrong_share` the share of wrong labels within these, where the true labels are known.
    `noise_rate` is the β and `removal` the τ that it learns with, None where it needs none.
    `held_out_share` is the part of the labels held out for an early stop that is met, None where none are.
    """

    epoch: int
    loss_supervised: float
    loss_unsupervised: float | None = None
    loss_generator: float | None = None
    kept_share: float
    disagreements: int | None = None
    disputed_wrong_share: float | None = None
    stage: int = 1
    test_accuracy: float | None = None
    held_out_share: float | None = None
    noise_rate: float | None = None
    removal: float | None = None


def _choice(key: str, value: object, allowed: Collection[str]) -> None:
    if value not in allowed:
        near = get_close_matches(str(value), allowed, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"{key} is {value!r}: one of {', '.join(allowed)} is meant{hint}")


def _whole(key: str, value: object, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{key} is {value!r}: a whole number of at least {least} is meant")


def _number(
    key: str, value: object, *, above: float | None = None, least: float | None = None, below: float
) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    number = float(value) if ok else math.nan  # type: ignore[arg-type]
    low = f"above {above:g}" if above is not None else f"of at least {least:g}"
    inside = ok and number < below and (number > above if above is not None else number >= (least or 0.0))
    if not inside:
        raise InputError(f"{key} is {value!r}: a number {low} and below {below:g} is meant")
