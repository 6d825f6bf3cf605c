"""What a user may choose about teachers and students: frozen values that check themselves. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pate_fed.structure import PART_NAME, check, refusal, setting

CLOSED_FORM: tuple[str, ...] = ("hog-linear", "encoder-head")  # fixed features, a head in closed form
STACKED = "small-cnn"  # many of them train as one program
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
RIDGE = "ridge"  # the student of class sums, in closed form: it learns from no labels
NETWORKS: tuple[str, ...] = ("encoder", "small-cnn", "deep-cnn", "dense")
NETWORK_STUDENTS = ("supervised", "gan", "co-teaching", "pate+", "pate++", "vat")  # of discriminators
UNNAMED = "small-cnn"  # what networks on pixels are that nobody names
# What we do beside the papers' algorithms; `StudentSettings` says what each is.
ADDITIONS = ("deformed", "balanced", "peers", "head", "undisputed")
_PLAIN: dict[str, Any] = {"ema_decay": 0.0, "additions": (), "decay_start": 1.0}
_PATE_PLUS = {**_PLAIN, "network": "deep-cnn", "epochs": 400, "batch_size": 100, "learning_rate": 0.01}
_PATE_PLUS |= {"noise_rate": 0.2, "ramp_epochs": 15, "dropout": 0.0, "input_noise": 0.0}
_GAN = {"network": "dense", "epochs": 300, "batch_size": 100, "learning_rate": 0.003, "ema_decay": 0.9999}
# What `as_published` takes where nothing else is said. Of PATE++ (arXiv 2211.01628, section IV, on
# Fashion-MNIST) the number of epochs is the one that its section III-C names; it names no dropout, noise or
# averaged weights. "gan" is the student of PATE 2017 (arXiv 1610.05755) as published for MNIST
# (openai/improved-gan, train_mnist_fm_custom_labels.py), "vat" that of Miyato et al. (arXiv 1704.03976;
# takerum/vat_tf on SVHN): 48,000 steps, which are 533 passes over 9,000 inputs. Not taken are its batches of
# 32 and 128 inputs, Adam's β1 of 0.9, a rate that falls to 0, and the length and start of its step.
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "gan": _PLAIN | _GAN,
    "co-teaching": _PATE_PLUS,
    "pate+": _PATE_PLUS,
    "pate++": _PATE_PLUS | {"count_decay": 0.9, "removal": 0.318},
    "vat": _PLAIN | {"network": "deep-cnn", "epochs": 533, "learning_rate": 0.001, "decay_start": 2 / 3},
}
_UNSAID = ("name", "as_published", "test_every", "trees")  # what changes nothing of how it learns
MOST = 100_000  # epochs, trees or records in a batch: more is a slip of the hand, or an attack on a hospital


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSettings:
    """How one teacher is trained; the defaults suit a few hundred records on one CPU core.

    "encoder-head" and "hog-linear" are fitted in closed form and heed none of the other values; the former
    needs the study's encoder, fitted to the public inputs. Of "small-cnn" and "deep-cnn" the learning rate is
    the peak of a one-cycle schedule; `epochs` is at most so many: a large part's training ends with the pass
    that reaches 600 steps. Teachers of tables use `trees` alone. All weigh records so that classes count
    alike.

    Raises:
        InputError: a value is out of range; the message names the key, the value and what is allowed.
    """

    name: str = setting(
        "encoder-head",
        flags="--teacher",
        help="the teachers' model",
        choices=TEACHERS,
        also=TABLE_TEACHERS,
        part=True,
    )
    epochs: int = setting(
        20, help="passes over its records, at most; large parts end after 600 steps", low=1, high=MOST
    )
    batch_size: int = setting(30, help="records in a step", low=1, high=MOST)
    learning_rate: float = setting(3e-3, help="the peak of a one-cycle schedule", above=0, below=10)
    weight_decay: float = setting(0.01, help="AdamW's", low=0, below=10)
    label_smoothing: float = setting(
        0.1, help="share of a label that is spread over all classes", low=0, below=1
    )
    trees: int = setting(100, help="of a teacher of tables", low=1, high=MOST)

    def __post_init__(self) -> None:
        check(self)

    @property
    def own(self) -> bool:
        """Whether it is code of the user's own."""
        return PART_NAME.fullmatch(self.name) is not None

    @property
    def needs_encoder(self) -> bool:
        """Whether it learns on the study's public encoder."""
        return self.name == "encoder-head"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentSettings:
    """How the student is trained (PATE++, section III and IV; defaults suit 9,000 inputs on two CPU cores).

    `noise_rate` is β, the share of released labels that are assumed wrong; None estimates it from the labels.
    `ramp_epochs` is the 15 in R(e) = 1 - β·min(e/15, 1); None is half of a stage, but at most 15.
    `learning_rate` holds up to the share `decay_start` of a stage, then falls linearly to a tenth.
    Predictions use weights averaged with `ema_decay` a step (0: the last ones).
    `network` is "encoder", a hidden layer on the study's public encoder; "small-cnn" or "deep-cnn" as
    teachers have them; or "dense", the improved GAN's for MNIST. None is "small-cnn" for "supervised" and
    "vat", and "encoder" for others: with deformed copies of the images, and a generator of features.
    A batch has at least two images, which the generator's norms need, and never more than there are.
    `dropout` is the share of features that a discriminator drops, `input_noise` the deviation of the noise
    on its input; None takes the network's own.
    For "pate++" `removal` is τ, the share of labels taken off after the first stage, those most often
    suspected with `count_decay` α; None takes off the labels that both discriminators contradict, or without
    "peers" τ = β. It trains twice, `epochs` each time.
    `additions` are ours, for discriminators that co-teach or are on the encoder: images are "deformed" at
    random, classes come alike often ("balanced"), unlabelled images teach what "peers" by averaged weights
    and a "head" in closed form say of them, and PATE+ learns from "undisputed" labels, too. None is all of
    them, or none where `ema_decay` is 0. With deformed images on pixels no dropout and noise given is 0.1 and
    0.05. `as_published` takes the values of its paper (`PUBLISHED`) for all that is not given.
    "vat" is one network that small steps in the pixels must not sway (virtual adversarial training).
    "fixmatch" is one network. All labels teach it, or those of small loss where `noise_rate` is given.
    "encoder-head" fits a head on features of the public inputs in closed form; the other values are not used.
    module:attribute is code of the user's own: a network learns as "supervised" does, others by themselves.
    As `network` it makes the discriminators of "gan" and the others that have some.
    "forest", for tables, uses `trees` alone. "ridge" is fitted to class sums, not to labels.

    Raises:
        InputError: a value is out of range; the message names the key, the value and what is allowed.
    """

    name: str = setting(
        "co-teaching",
        flags="--student",
        help="how the student learns (class-sums: ridge unless given)",
        choices=STUDENTS,
        also=(*TABLE_STUDENTS, RIDGE),
        part=True,
    )
    network: str | None = setting(
        None,
        help="what it is made of (default: small-cnn for supervised and vat, else encoder)",
        choices=NETWORKS,
        part=True,
    )
    epochs: int | None = setting(
        None,
        flags="--student-epochs",
        help="passes over the public data, in each stage (default: 10)",
        low=1,
        high=MOST,
    )
    batch_size: int = setting(100, help="inputs in a step", low=2, high=MOST)
    learning_rate: float | None = setting(
        None, help="until it falls, to a tenth at the end (default: 0.003)", above=0, below=10
    )
    decay_start: float | None = setting(
        None, help="share of a stage until the rate falls; 1: never (default: half)", low=0, high=1
    )
    noise_rate: float | None = setting(
        None, help="β, share of labels taken for wrong (default: estimated from the labels)", low=0, below=1
    )
    ramp_epochs: int | None = setting(
        None,
        help="epochs until that share of the labels is left out (default: half of a stage, at most 15)",
        low=1,
        high=MOST,
    )
    ema_decay: float | None = setting(
        None,
        help="of the averaged weights that answer; 0: the last ones answer (default: 0.998)",
        low=0,
        below=1,
    )
    additions: tuple[str, ...] | None = setting(
        None, help="ours, not the papers' (default: all; without averaged weights none)", choices=ADDITIONS
    )
    dropout: float | None = setting(
        None, help="share of features that are dropped (default: the network's own)", low=0, below=1
    )
    input_noise: float | None = setting(
        None, help="deviation of the noise on inputs (default: the network's own)", low=0, below=10
    )
    count_decay: float = setting(
        0.9, help="pate++: α, how slowly an earlier suspicion of a label fades", low=0, below=1
    )
    removal: float | None = setting(
        None,
        help="pate++: τ, share of labels that are removed (default: those that both contradict)",
        low=0,
        below=1,
    )
    as_published: bool = setting(
        False,
        flags="--as-published",
        help="as the paper of gan, co-teaching, pate+, pate++ or vat has it, but for what is given",
    )
    test_every: int = setting(1, help="epochs between two tests of its accuracy", low=1, high=MOST)
    trees: int = setting(100, help="of a forest, for tables", low=1, high=MOST)

    DEFAULT_NOISE_RATE = 0.2
    DEFAULT_EPOCHS = 10
    DEFAULT_RAMP = 15  # PATE++'s
    DEFAULT_RATE, DEFAULT_START, DEFAULT_EMA = 3e-3, 0.5, 0.998

    def __post_init__(self) -> None:
        check(self)
        if self.own and self.network is not None:
            raise refusal(self, "network", "none beside a student of your own")
        if self.code is not None and not self.own and self.name not in NETWORK_STUDENTS:
            raise refusal(self, "network", f"one of ours, or one of these students: {NETWORK_STUDENTS}")
        if self.as_published and self.name not in PUBLISHED:
            others = ", ".join(PUBLISHED)
            raise refusal(self, "as_published", f"false is meant beside {self.name}; of {others} it is known")
        if "head" in (self.additions or ()) and "peers" not in (self.additions or ()):
            raise refusal(self, "additions", "peers are meant beside head, which has a part in what they say")

    def chosen(self, key: str) -> Any:
        """What holds for a key: its value, else its paper's where that is wanted, else None."""
        given, published = getattr(self, key), PUBLISHED.get(self.name, {}) if self.as_published else {}
        return published.get(key) if given is None else given

    @property
    def said(self) -> str:
        """What it is, for people: its name, and whether it is as published, and what is not."""
        if not self.as_published:
            return self.name
        papers = {each.name: PUBLISHED[self.name].get(each.name, each.default) for each in fields(self)}
        given = {key: getattr(self, key) for key in papers if key not in _UNSAID}
        other = [f"{key} {value}" for key, value in given.items() if value not in (None, papers[key])]
        return f"{self.name} as published" + (f", but for {', '.join(other)}" if other else "")

    @property
    def own(self) -> bool:
        """Whether it is code of the user's own."""
        return PART_NAME.fullmatch(self.name) is not None

    @property
    def code(self) -> str | None:
        """The user's own code that it is, or whose network it is made of; None where all is ours."""
        return next((each for each in (self.name, self.network) if each and PART_NAME.fullmatch(each)), None)

    @property
    def built_on(self) -> str:
        """The network of ours that it is made of; beside one of the user's own, whose generator it has."""
        if self.code is not None:
            return UNNAMED
        plain = self.name in ("supervised", "vat")
        return self.chosen("network") or ("small-cnn" if plain else "encoder")

    @property
    def beta(self) -> float:
        """β: the share of labels that are assumed wrong; a default where it is not given or estimated."""
        rate = self.chosen("noise_rate")
        return self.DEFAULT_NOISE_RATE if rate is None else rate

    @property
    def tau(self) -> float:
        """τ: the share of labels that PATE++ removes."""
        share = self.chosen("removal")
        return self.beta if share is None else share

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

    def adds(self, addition: str) -> bool:
        """Whether it has one of our `additions`."""
        chosen = self.chosen("additions")
        if chosen is None:
            chosen = ADDITIONS if self.averaging else ()
        on_features = self.generates and self.built_on == "encoder"
        return addition in chosen and (self.co_teaching or on_features)

    @property
    def stages(self) -> int:
        """How often the student is trained from scratch."""
        return 2 if self.name == "pate++" else 1

    @property
    def stage_epochs(self) -> int:
        """Epochs of each stage."""
        return self.chosen("epochs") or self.DEFAULT_EPOCHS

    @property
    def averaging(self) -> float:
        """Decay of the averaged weights a step."""
        decay = self.chosen("ema_decay")
        return self.DEFAULT_EMA if decay is None else decay

    @property
    def rate(self) -> float:
        """The learning rate, before it falls."""
        return self.chosen("learning_rate") or self.DEFAULT_RATE

    def rate_in(self, epoch: int) -> float:
        """The learning rate in an epoch of a stage, counted from 1."""
        start, done = self.chosen("decay_start"), (epoch - 1) / self.stage_epochs
        start = self.DEFAULT_START if start is None else start
        return self.rate if done <= start else self.rate * (1 - 0.9 / (1 - start) * (done - start))

    @property
    def ramp(self) -> int:
        """Epochs until the share of labels that are assumed wrong is left out."""
        return self.chosen("ramp_epochs") or min(-(-self.stage_epochs // 2), self.DEFAULT_RAMP)

    @property
    def total_epochs(self) -> int:
        """Epochs of all stages together: the number of records."""
        return 1 if self.name in CLOSED_FORM else self.stage_epochs * self.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """One epoch of a student, counted from 1 through all stages. Losses are means over the epoch's batches.

    `kept_share` is the part of the labelled samples whose supervised loss was used; `disagreements` the
    labelled samples (duplicates counted) on which the two discriminators disagreed, None with one of them;
    `disputed_wrong_share` the share of wrong labels within these, where the true labels are known.
    `noise_rate` is the β and `removal` the τ that it learns with, None where it needs none.
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
    noise_rate: float | None = None
    removal: float | None = None
