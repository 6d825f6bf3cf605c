"""A kind of question of one's own: its terms without its code, what it costs, and the example's proof."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import BINS, HOSPITALS, ExactOwn, Own, table_study
from own_kind import Median

from pate_fed.config.sections import Privacy
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.own import OwnTerms, own_terms, shares_of, sigma_of, sizes_of
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import Ledger, SeededNoise, verify
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.ledger.terms import (
    guaranteed_coordinator_epsilon,
    guaranteed_epsilon,
    mechanism_from_parameters,
)

NAME, ROOT = "own_kind:Median", Path(__file__).resolve().parents[2]
GIVEN = {"bins": BINS, "scale": 4.0}


@pytest.fixture
def own(tmp_path: Path) -> Own:
    return Own(tmp_path)


def asks_of(**changes: Any) -> OwnTerms:
    """The example's terms for one record."""
    return own_terms(NAME, {**GIVEN, **changes}, Privacy(unit="record"))[0]


# The example: its noise, its sensitivity, its median.


def _pieces(scale: float, shares: int, most: int) -> np.ndarray:
    """Chances of a share of a geometric number: (1 - a)^(1/m) C(k - 1 + 1/m, k) a^k, k = 0..most."""
    a, r, k = math.exp(-1 / scale), 1 / shares, np.arange(most + 1)
    logs = np.array([math.lgamma(i + r) - math.lgamma(r) - math.lgamma(i + 1) for i in k])
    return np.exp(r * math.log1p(-a) + logs + k * math.log(a))


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
def test_so_many_shares_are_the_whole_noise_and_the_whole_is_pure(shares: int) -> None:
    scale, most = 2.0, 400
    one = _pieces(scale, shares, most)
    whole = np.array([1.0])
    for _ in range(shares):
        whole = np.convolve(whole, one)[: most + 1]
    law = np.convolve(whole, whole[::-1])  # of the difference, at -most..most
    x = np.arange(-most, most + 1)
    laplace = np.exp(-np.abs(x) / scale) * math.tanh(1 / (2 * scale))
    assert np.abs(law - laplace).max() < 1e-12
    middle = slice(most - 20, most + 21)  # moved by 1 a chance changes by e^(1/scale) at most
    ratio = law[middle][1:] / law[middle][:-1]
    assert np.abs(np.log(ratio)).max() <= 1 / scale + 1e-9


@pytest.mark.parametrize("shares", [1, 3, 8])
def test_shares_have_the_stated_law_and_deviation(shares: int) -> None:
    kind, count = Median(scale=2.0), 40_000
    drawn = kind._share(count, SeededNoise(5), shares)
    chances = _pieces(2.0, shares, 12)
    found = np.bincount(drawn, minlength=13)[:13] / count
    assert np.abs(found - chances).max() < 4 * math.sqrt(0.25 / count)
    noise = kind.noise((count, 1), SeededNoise(6), shares)
    assert noise.dtype == np.int64 and noise.shape == (count, 1)
    assert noise.std() == pytest.approx(kind.sigma(shares), rel=0.03)
    assert np.mean(noise) == pytest.approx(0, abs=0.05)


def test_a_record_that_is_another_moves_two_counts_at_most() -> None:
    kind, rng = Median(bins=16), np.random.default_rng(2)
    labels = np.zeros(30, dtype=np.int64)
    for _ in range(60):
        rows = rng.uniform(-0.2, 1.2, (30, 2))
        other = rows.copy()
        other[rng.integers(30)] = rng.uniform(-0.2, 1.2, 2)
        for question in (0, 1, int(rng.integers(2, 17))):
            places = np.arange(16) + 16 * question
            counts = kind.answer(rows, labels, None, places)
            moved = np.abs(counts - kind.answer(other, labels, None, places)).sum()
            fewer = np.abs(counts - kind.answer(rows[1:], labels[1:], None, places)).sum()
            assert counts.sum() == 30 and moved <= 2 and fewer == 1


@pytest.mark.parametrize("low", [0.0, -3.0])
def test_without_noise_it_finds_the_median_that_a_plain_version_does(low: float) -> None:
    kind, rng = Median(low=low, high=1.0, bins=64), np.random.default_rng(3)
    for count in (1, 2, 51, 400):
        rows = rng.uniform(low, 1, (count, 1))
        released: list[int] = []
        while (places := kind.ask(released)) is not None:
            exact = kind.answer(rows, np.zeros(count, dtype=np.int64), None, places)
            released.append(kind.release(exact.reshape(-1), SeededNoise(0)))
        assert len(released) == kind.questions
        below = sorted(rows[:, 0])[(count - 1) // 2]
        ends = [float(word.strip(",")) for word in kind.tell(released).split() if word[0] in "-0123456789"][
            1:3
        ]
        assert ends[0] - 1e-3 <= below <= ends[1] + 1e-3 and ends[1] - ends[0] < (1 - low) / 1000


def test_what_it_claims_is_what_two_pure_questions_cost() -> None:
    mechanism = asks_of(scale=4.0).release
    one = epsilon_of(mechanism.cost(1, 1, mechanism.protection), 1e-5)
    two = epsilon_of(mechanism.cost(2, 2, mechanism.protection), 1e-5)
    assert 0.5 <= one < 0.502 and 1 <= two < 1.002
    with pytest.raises(InputError, match="claims an RDP at 0 orders"):
        own_terms(NAME, {}, Privacy(unit="hospital"))


# Terms.


def test_terms_are_read_priced_and_put_into_words_without_the_code(own: Own) -> None:
    text = own.terms.to_json()
    code = (
        "import sys; from pate_fed.kinds.terms import Terms\n"
        "terms = Terms.from_json(sys.stdin.read())\n"
        "fixed = terms.ledger_terms(noise='as agreed', private=True)\n"
        "words = terms.words\n"
        "print(*words.leaves, *words.sees, words.asked, fixed.protects, len(fixed.assumptions.each))\n"
        "assert 'own_kind' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().endswith("one patient replaced 1") and "bins of 0 to 1" in run.stdout


def test_what_is_agreed_is_charged_and_rests_on_its_word(own: Own) -> None:
    asks, terms = OwnTerms.of(own.terms), own.terms
    fixed = terms.ledger_terms(noise="as agreed", private=True)
    assert (fixed.most_asked, fixed.most_answered) == (2, 2)
    assert guaranteed_epsilon(fixed) == guaranteed_coordinator_epsilon(fixed)  # it sees what is charged
    assert terms.assumptions().names == fixed.assumptions.names == (NAME,)
    assert (terms.bounds.rows, terms.bounds.columns, terms.bounds.row) == (BINS, 1, None)
    assert (terms.labels, terms.max_queries, terms.num_teachers) == (2, 2 * BINS, 0)
    again = mechanism_from_parameters(asks.mechanism, asks.release.parameters())
    assert again == asks.release and again.num_teachers == 0


def test_a_coordinator_that_adds_the_noise_has_no_bound(tmp_path: Path) -> None:
    fixed = ExactOwn(tmp_path).terms.ledger_terms(noise="as agreed", private=True)
    assert guaranteed_coordinator_epsilon(fixed) is None and "exact totals" in fixed.coordinator.text()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"asks": {"rows": BINS + 1}}, None),
        ({"asks": {"rows": 1}}, "columns"),
        ({"asks": {"places": 3}}, "places"),
        ({"asks": {"says": "a\nb"}}, "says"),
        ({"asks": {"questions": 0}}, "questions"),
        ({"privacy": {"unit": "hospital"}}, "claim"),
        ({"privacy": {"adjacency": "add-or-remove-one"}}, "claim"),
        ({"privacy": {"sanitise": True}}, "sanitise"),
        (
            {
                "secrecy": {"secure_sum": False, "noise_at": "coordinator", "colluders": None},
                "sigma_party": None,
            },
            "secure_sum",
        ),
    ],
)
def test_terms_that_do_not_go_together_are_refused(
    changes: dict[str, Any], named: str | None, own: Own
) -> None:
    values = json.loads(own.terms.to_json())
    for name, change in changes.items():
        values[name] = {**values[name], **change} if isinstance(change, dict) else change
    if named is None:  # another size is no contradiction; a hospital holds it against the code
        terms = Terms.from_json(json.dumps(values))
        assert not OwnTerms.of(terms).fits(OwnTerms.of(terms).code(), terms)
    else:
        with pytest.raises((InputError, IntegrityError), match=named):
            Terms.from_json(json.dumps(values))


def test_a_budget_that_its_claim_passes_is_refused(own: Own) -> None:
    for epsilon, fits in ((1.01, True), (0.99, False)):
        terms = replace(own.terms, privacy=replace(own.terms.privacy, epsilon=epsilon))
        if fits:
            assert guaranteed_epsilon(terms.ledger_terms(noise="as agreed", private=True)) <= epsilon  # type: ignore[operator]
        else:
            with pytest.raises(InputError, match="by its own claim"):
                terms.ledger_terms(noise="as agreed", private=True)


def test_its_code_is_held_against_the_terms(own: Own) -> None:
    asks = OwnTerms.of(own.terms)
    code = asks.code()
    assert asdict(code) == {"column": 0, "low": 0.0, "high": 1.0, **GIVEN} and asks.fits(code, own.terms)
    assert own.terms.sigma_party == sigma_of(code, shares_of(own.terms))
    assert not asks.fits(Median(bins=BINS, scale=5.0), own.terms)  # other noise
    assert not replace(asks, questions=3).fits(code, own.terms)
    other = replace(asks, claim=replace(asks.claim, part=replace(asks.claim.part, digest="0" * 64)))
    with pytest.raises(IntegrityError, match="differs from the study's"):
        other.code()
    less = replace(asks, claim=replace(asks.claim, rdp=tuple(value / 2 for value in asks.claim.rdp)))
    with pytest.raises(IntegrityError, match="claims a larger curve"):
        less.code()


@dataclass(frozen=True)
class Lacking:
    """A kind that does not say how it goes on."""

    def rdp(self, order: float, sensitivity: Any) -> float:
        return order / 100

    def release(self, noisy: Any, source: Any) -> int:
        return 0


def test_a_kind_that_lacks_something_is_told_what() -> None:
    with pytest.raises(InputError, match="has no answer"):
        sizes_of(Lacking(), "mine:Lacking")
    with pytest.raises(InputError, match="'own_kind:Nothing'"):
        own_terms("own_kind:Nothing", {}, Privacy(unit="record"))
    with pytest.raises(InputError, match="fails when it is made"):
        own_terms(NAME, {"nothing": 1}, Privacy(unit="record"))


# A study.


def test_a_study_names_a_kind_in_place_of_votes_and_sums(tmp_path: Path) -> None:
    from pate_fed.config.study import read_study, study_from_dict

    study = table_study(tmp_path, asks="own", at_hospitals=True)
    assert (study.aggregation.kind, study.engine.backend, study.aggregation.votes) == (NAME, "grpc", False)
    (path := tmp_path / "study.toml").write_text(study.to_toml(), encoding="utf-8")
    assert read_study(path).resolve() == study
    kind = {"kind": NAME}
    for sections, words in (
        ({"aggregation": kind}, "without --secure-sum"),
        ({"aggregation": {**kind, "aggregator": "gnmax"}, "secrecy": {"secure_sum": True}}, "kind"),
        ({"aggregation": {**kind, "sigma2": 2.0}, "secrecy": {"secure_sum": True}}, "sigma2"),
        ({"aggregation": {"kind": "median"}}, "module:attribute"),
        (
            {"aggregation": kind, "secrecy": {"secure_sum": True}, "privacy": {"sanitise": True}},
            "--sanitise with --kind",
        ),
    ):
        with pytest.raises(InputError, match=words):
            study_from_dict({"parties": {"num_clients": HOSPITALS}, **sections})


def test_an_object_of_a_process_is_a_kind_too(tmp_path: Path) -> None:
    from pate_fed.cli.simulate import simulate

    rows = np.random.default_rng(1).uniform(0, 1, (500, 1))
    private = {"private_images": rows[:400], "private_labels": np.arange(400) % 2}
    study = {
        "study": {"seed": 1},
        "parties": {"num_clients": 5},
        "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
    }
    run = simulate(
        study,
        dataset={**private, "public_images": rows[400:]},
        kind=Median(bins=16, scale=2.0),
        run_dir=tmp_path / "run",
        quiet=True,
    )
    assert run.metrics["status"] == "success" and run.metrics["privacy"]["claimed_by"][0]["name"] == NAME
    run.ledger.require_checked()
    numbers = Ledger.read(tmp_path / "run").chain.released()[2].tolist()
    assert 3 <= numbers[0] <= 12
    assert f"{Median(bins=16).tell(numbers)}" in (tmp_path / "run" / "report.html").read_text(
        encoding="utf-8"
    )
    verify(tmp_path / "run" / "ledger.sqlite", aggregators=[NAME]).require_checked()
