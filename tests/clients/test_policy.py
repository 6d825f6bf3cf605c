"""A hospital's policy: each limit refuses with its own reason, and the file's mistakes are named."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from builders import (
    THEIRS,
    make_label_terms,
    make_lung_terms,
    make_scored_terms,
    make_sum_terms,
    make_terms,
    own_map_terms,
    vary,
)

from clients.policy import Policy, find_policy
from pate_fed.cli.consent import allow_counts, confirm_in
from pate_fed.config.sections import Aggregation
from pate_fed.errors import InputError
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms, worst_epsilon
from pate_fed.learning import TeacherSettings
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.privacy.bounds.cost import CLAIMED_ORDERS, Claim
from pate_fed.protocol.messages import Refusal
from pate_fed.secure_sum import Demands, fingerprint
from pate_fed.structure import from_plain, to_plain
from pate_fed.structure.parts import PartIdentity

TERMS = make_lung_terms()
OWN_TEACHER = {
    "teacher": TeacherSettings(name="theirs:make"),
    "teacher_part": PartIdentity(name="theirs:make", version="1.0", digest="cd" * 32),
}


KNOWN = {f"h{number}": fingerprint(bytes([number] * 32)) for number in range(9)}


def _reason(policy: Policy, terms: Terms = TERMS) -> Refusal | None:
    """Why a hospital that has confirmed all nine others does not take part."""
    found = replace(policy, trusted=KNOWN).objection(terms)
    return None if found is None else found[0]


OWN_MECHANISM = {
    "aggregation": Aggregation(aggregator="theirs:make"),
    "claim": Claim(
        part=PartIdentity(name="theirs:make", version="1.0", digest="cd" * 32),
        unit="record",
        adjacency="replace-one",
        votes_moved=2,  # of several teachers the old one's and the new one's
        rdp=tuple(order / 800 for order in CLAIMED_ORDERS),
    ),
}


def test_a_claim_is_taken_only_from_a_mechanism_that_is_listed() -> None:
    terms = vary(TERMS, **OWN_MECHANISM)
    refused = Policy(plain_votes=True).objection(terms)
    assert refused is not None and refused[0] is Refusal.POLICY_AGGREGATOR
    assert "aggregators = ['theirs:make'] in policy.toml would allow it" in refused[1]
    assert _reason(Policy(plain_votes=True, teachers=("theirs:make",)), terms) is Refusal.POLICY_AGGREGATOR
    listed = Policy(plain_votes=True, aggregators=("theirs:make",))
    assert _reason(listed, terms) is None  # and none of its code was loaded: there is no such module
    public, _ = worst_epsilon(terms)
    assert public is not None and _reason(replace(listed, epsilon_public=public / 2), terms) is (
        Refusal.POLICY_PUBLIC
    )
    assert _reason(replace(listed, epsilon_public=public), terms) is None


def test_a_feature_map_runs_only_where_it_is_listed() -> None:
    sums = SumTerms.of(make_sum_terms())
    part = PartIdentity(name="theirs:make", digest="cd" * 32)
    terms = replace(
        make_sum_terms(), asks=replace(sums, settings=FeatureSettings(name="theirs:make"), part=part)
    )
    assert _reason(Policy(teachers=("theirs:make",)), terms) is Refusal.POLICY_FEATURE_MAP
    assert _reason(Policy(feature_maps=("theirs:make",)), terms) is None
    assert (
        Policy().refuses_code(terms) is not None
        and Policy(feature_maps=("theirs:make",)).refuses_code(terms) is None
    )
    assert Policy().refuses_code(vary(TERMS, **OWN_TEACHER)) is not None
    assert Policy().refuses_code(TERMS) is Policy().refuses_code(vary(TERMS, **OWN_MECHANISM)) is None
    with pytest.raises(
        InputError, match="the code of the very feature map, where it is none of ours, is meant"
    ):
        replace(sums, part=part)


def test_a_refusal_says_what_ε_would_take_the_code_s_word_for() -> None:
    def sentence(terms: Terms) -> str:
        found = Policy(plain_votes=True).objection(terms)
        assert found is not None
        return found[1]

    assert f"every ε rests on the word of {THEIRS.text}" in sentence(own_map_terms())
    assert "claims for one query" in sentence(vary(TERMS, **OWN_MECHANISM))
    several = vary(TERMS, **OWN_TEACHER, teachers_per_client=3)
    assert "a teacher follows from its own records alone" in sentence(several)
    # One that is replaced may change both of two: then nothing is left to pass on.
    few = (vary(TERMS, **OWN_TEACHER, teachers_per_client=count) for count in (1, 2))
    for nobody in (vary(several, unit="hospital"), *few):
        assert sentence(nobody).startswith("the line teachers = ['theirs:make'] in policy.toml")


@pytest.mark.parametrize("least", [2, 3])
def test_a_hospital_may_ask_that_ε_reckons_with_other_hospitals_of_its_patients(least: int) -> None:
    policy = Policy(plain_votes=True, least_hospitals_per_patient=least)
    patient = vary(TERMS, unit="patient")
    for terms in (patient, TERMS, vary(TERMS, unit="hospital"), make_sum_terms(unit="patient")):
        assert _reason(replace(policy, class_sums="exact"), terms) is Refusal.POLICY_PATIENT
    assert _reason(policy, vary(patient, hospitals_per_patient=least)) is None
    assert _reason(policy, vary(patient, hospitals_per_patient=least + 1)) is None
    found = policy.objection(vary(patient, hospitals_per_patient=least - 1))
    assert found is not None and f"the policy wants a patient at {least}; the line" in found[1]
    assert _reason(Policy(plain_votes=True), patient) is None
    with pytest.raises(InputError, match="least_hospitals_per_patient"):
        Policy(least_hospitals_per_patient=0)


def test_a_policy_that_fits_objects_to_nothing() -> None:
    public, coordinator = worst_epsilon(TERMS)
    assert coordinator is None
    policy = Policy(
        plain_votes=True,
        studies=("lungs",),
        pools=(TERMS.pool_digest,),
        classes=("ill", "well", "dead"),
        most_queries=60,
        most_queries_a_day=1,
        least_hospitals=8,
        epsilon_public=public,
    )
    assert _reason(policy) is None
    assert _reason(replace(policy, studies=(TERMS.digest,))) is None
    assert _reason(Policy(), vary(TERMS, secure_sum=True)) is None
    assert _reason(Policy(plain_votes=True, teachers=("theirs:make",)), vary(TERMS, **OWN_TEACHER)) is None


@pytest.mark.parametrize(
    ("policy", "at_hospitals", "reason"),
    [
        (Policy(), True, None),
        (Policy(), False, Refusal.POLICY_EXACT_SUMS),
        (Policy(class_sums="exact"), True, None),
        (Policy(class_sums="exact"), False, None),
        (Policy(class_sums="no"), True, Refusal.POLICY_SUMS),
        (Policy(class_sums="no"), False, Refusal.POLICY_SUMS),
        (Policy(most_queries=1, most_queries_a_day=1), True, None),
        (Policy(epsilon_public=2.0, epsilon_coordinator=2.0), True, None),
        (Policy(epsilon_public=0.5), True, Refusal.POLICY_PUBLIC),
        (Policy(epsilon_coordinator=0.5), True, Refusal.POLICY_COORDINATOR),
        (Policy(class_sums="exact", epsilon_coordinator=9.0), False, Refusal.POLICY_COORDINATOR),
        (Policy.of_simulated(), False, None),
    ],
)
def test_class_sums_leave_with_noise_in_them_unless_the_policy_says_otherwise(
    policy: Policy, at_hospitals: bool, reason: Refusal | None
) -> None:
    assert _reason(policy, make_sum_terms(at_hospitals=at_hospitals)) is reason
    found = policy.objection(make_sum_terms(at_hospitals=at_hospitals))
    if reason is Refusal.POLICY_EXACT_SUMS:
        assert found is not None and 'class_sums = "exact"' in found[1]


@pytest.mark.parametrize(
    ("policy", "at_hospitals", "reason"),
    [
        (Policy(), True, Refusal.POLICY_COUNTS),
        (Policy(class_sums="exact"), False, Refusal.POLICY_COUNTS),  # of before there were counts
        (Policy(most_sums=3), True, Refusal.POLICY_COUNTS),
        (Policy(counts=True), True, None),
        (Policy(counts=True, most_sums=3), True, None),  # as the page says: 3 times sums, and once counts
        (Policy(counts=True, most_sums=2), True, Refusal.POLICY_ROUNDS),
        (Policy(counts=True), False, Refusal.POLICY_EXACT_SUMS),
        (Policy(counts=True, class_sums="exact"), False, None),
        (Policy(counts=True, class_sums="no"), True, Refusal.POLICY_SUMS),
        (Policy.of_simulated(), False, None),
    ],
)
def test_counts_leave_only_where_the_policy_has_a_word_of_them(
    policy: Policy, at_hospitals: bool, reason: Refusal | None
) -> None:
    assert _reason(policy, make_scored_terms(at_hospitals=at_hospitals)) is reason
    if reason is Refusal.POLICY_COUNTS:
        found = policy.objection(make_scored_terms(at_hospitals=at_hospitals))
        assert found is not None and "counts = true in policy.toml would allow" in found[1]
        assert _reason(policy, make_sum_terms(at_hospitals=at_hospitals)) is None  # sums alone still do


@pytest.mark.parametrize(
    ("before", "counts"),
    [
        (None, True),
        ("", True),
        ("most_sums = 3", True),
        ('\ufeff[trusted]\nh1 = "babab-babab-babab-babab-babab"\n', True),
        ("counts = false\n", False),
    ],
)
def test_a_yes_to_counts_is_written_unless_the_policy_has_its_own_word(
    before: str | None, counts: bool, tmp_path: Path
) -> None:
    path = tmp_path / "policy.toml"
    if before is not None:
        path.write_text(before, encoding="utf-8")
    assert not allow_counts(path, make_sum_terms())  # nothing of counts was agreed to
    assert path.exists() == (before is not None) and (before is None or path.read_text("utf-8") == before)
    old = Policy.load(path if before is not None else None)
    assert ("counts = true is written" in allow_counts(path, make_scored_terms())) == counts
    assert Policy.load(path) == replace(old, counts=counts)
    assert "is written" not in allow_counts(path, make_scored_terms())


def test_whoever_never_gives_sums_votes_all_the_same() -> None:
    assert _reason(Policy(class_sums="no"), vary(TERMS, secure_sum=True)) is None
    with pytest.raises(InputError, match="no, noisy, exact"):
        Policy(class_sums="yes")


@pytest.mark.parametrize(
    ("policy", "terms", "reason"),
    [
        (Policy(studies=("hearts",)), {}, Refusal.POLICY_STUDY),
        (Policy(pools=("00" * 32,)), {}, Refusal.POLICY_POOL),
        (Policy(classes=("ill",)), {}, Refusal.POLICY_CLASSES),
        (Policy(least_hospitals=9), {}, Refusal.POLICY_HOSPITALS),
        (Policy(plain_votes=True), OWN_TEACHER, Refusal.POLICY_TEACHER),
        (Policy(plain_votes=True, teachers=("theirs:other",)), OWN_TEACHER, Refusal.POLICY_TEACHER),
        (Policy(), {}, Refusal.POLICY_SECURE_SUM),
        (Policy(), {"seed": 3, "secure_sum": True}, Refusal.POLICY_SEED),
        (Policy(), {"least_clients": 2, "secure_sum": True}, Refusal.POLICY_HOSPITALS),
        (Policy(), {"max_queries": 100, "secure_sum": True}, Refusal.POLICY_CAPS),
        (Policy(most_queries=59), {}, Refusal.POLICY_QUERIES),
        (Policy(epsilon_public=0.5), {}, Refusal.POLICY_PUBLIC),
        (Policy(epsilon_public=100.0), {"delta": 0.5}, Refusal.POLICY_DELTA),
        (Policy(epsilon_coordinator=100.0, delta=1e-6), {}, Refusal.POLICY_DELTA),
        (Policy(epsilon_coordinator=100.0), {}, Refusal.POLICY_COORDINATOR),
        (Policy(epsilon_coordinator=100.0), {"secure_sum": True}, Refusal.POLICY_COORDINATOR),
    ],
)
def test_each_limit_has_its_own_reason(policy: Policy, terms: dict[str, object], reason: Refusal) -> None:
    if reason is not Refusal.POLICY_SECURE_SUM:
        policy = replace(policy, plain_votes=True)
    found = policy.objection(vary(TERMS, **terms))
    assert found is not None and found[0] is reason
    assert "policy.toml" in found[1]  # a sentence without its line or limit would leave the reader to search
    assert reason.is_policy
    assert reason.value.startswith("refused by the hospital's policy: ")


@pytest.mark.parametrize(
    ("terms", "line"),
    [
        ({}, "plain_votes = true"),
        ({"secure_sum": True, "seed": 3}, "seeded_noise = true"),
        ({"secure_sum": True, "least_clients": 2}, "least_hospitals = 2"),
        ({"secure_sum": True, "max_queries": 100}, "uncapped = true"),
    ],
)
def test_the_default_protects_and_says_which_line_would_allow_more(
    terms: dict[str, object], line: str, tmp_path: Path
) -> None:
    asked = vary(TERMS, **terms)
    found = Policy.load(None).objection(asked)
    assert found is not None
    reason, sentence = found
    assert f"the line {line} in policy.toml would allow it" in sentence
    assert line not in reason.value  # what the coordinator is told is from the fixed list
    path = tmp_path / "policy.toml"
    path.write_text(line)
    assert _reason(Policy.load(path), asked) is None
    path.write_text("most_queries = 1000")  # a file for something else agrees to nothing more
    assert Policy.load(path).objection(asked) == found


def test_a_refused_coordinator_is_told_what_it_could_do() -> None:
    assert Refusal.POLICY_SECURE_SUM.value.endswith("--secure-sum masks them")
    assert "--max-queries" in Refusal.POLICY_CAPS.value
    assert "--quorum" in Refusal.POLICY_HOSPITALS.value


def test_labels_after_randomised_response_are_no_plain_votes() -> None:
    terms = make_label_terms()
    assert terms.least_clients == 2
    assert _reason(Policy(), terms) is Refusal.POLICY_HOSPITALS
    assert _reason(Policy(least_hospitals=2), terms) is None


def test_a_simulated_party_has_nothing_to_protect() -> None:
    asked = vary(TERMS, seed=3, least_clients=1, max_queries=100)
    assert _reason(Policy.of_simulated(), asked) is None


def test_a_policy_beside_the_keys_holds_without_being_named(tmp_path: Path) -> None:
    assert find_policy(None, None) is None
    assert find_policy(None, str(tmp_path)) is None
    (tmp_path / "policy.toml").touch()
    assert find_policy(None, str(tmp_path)) == tmp_path / "policy.toml"
    assert find_policy("other.toml", str(tmp_path)) == Path("other.toml")


def test_a_cost_a_hair_above_what_is_allowed_is_shown_above_it() -> None:
    public = worst_epsilon(TERMS)[0]
    assert public is not None
    found = Policy(epsilon_public=public * (1 - 1e-9), plain_votes=True).objection(TERMS)
    assert found is not None
    shown = float(found[1].split(" may be ")[1].split(",")[0])
    assert public <= shown <= public * 1.001


def test_noise_at_the_hospitals_bounds_the_coordinator() -> None:
    noisy = vary(TERMS, secure_sum=True, noise_at="hospitals", sigma_party=8.0, colluders=1)
    public, coordinator = worst_epsilon(noisy)
    assert coordinator is not None
    assert _reason(Policy(epsilon_coordinator=coordinator, epsilon_public=public), noisy) is None
    assert _reason(Policy(epsilon_coordinator=coordinator * 0.99), noisy) is Refusal.POLICY_COORDINATOR


def test_a_limit_on_ε_is_not_met_by_other_neighbours() -> None:
    """With one noise ε is smaller for a hospital that comes or goes than for one that is replaced."""
    replaced = make_terms(sigma1=12.0, sigma2=8.0, labels=4, max_queries=4, unit="hospital")
    renamed = vary(replaced, adjacency="add-or-remove-one")
    most, less = worst_epsilon(replaced)[0], worst_epsilon(renamed)[0]
    assert most is not None and less is not None and less < most
    limited = Policy(plain_votes=True, epsilon_public=(less + most) / 2)
    assert (_reason(limited, replaced), _reason(limited, renamed)) == (Refusal.POLICY_PUBLIC, None)
    bound = replace(limited, adjacencies=("replace-one",), units=("hospital",))
    found = bound.objection(renamed)
    assert found == (
        Refusal.POLICY_ADJACENCY,
        "privacy.adjacency is 'add-or-remove-one', the policy allows replace-one; the line adjacencies = "
        "['replace-one', 'add-or-remove-one'] in policy.toml would allow it",
    )
    assert _reason(bound, vary(replaced, unit="record")) is Refusal.POLICY_UNIT
    assert _reason(replace(bound, epsilon_public=most), replaced) is None


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy(units=("record", "hospital")), Refusal.POLICY_UNIT),
        (Policy(units=("label",)), None),
        (Policy(adjacencies=("add-or-remove-one",)), Refusal.POLICY_ADJACENCY),
        (Policy(adjacencies=("replace-one",), least_colluders=9), None),  # no shares of noise
    ],
)
def test_private_labels_state_ε_for_a_label_replaced(policy: Policy, reason: Refusal | None) -> None:
    assert _reason(replace(policy, least_hospitals=2), make_label_terms()) is reason


def test_a_limit_on_ε_is_not_met_by_trusting_all_hospitals() -> None:
    secret = {"secure_sum": True, "noise_at": "hospitals", "sigma_party": 6.0}
    nobody, some = (vary(TERMS, **secret, colluders=count) for count in (0, 2))
    less, more = worst_epsilon(nobody)[1], worst_epsilon(some)[1]
    assert less is not None and more is not None and less < more
    limited = Policy(epsilon_coordinator=(less + more) / 2)
    assert (_reason(limited, nobody), _reason(limited, some)) == (None, Refusal.POLICY_COORDINATOR)
    assert replace(limited, least_colluders=2).objection(nobody) == (
        Refusal.POLICY_COLLUDERS,
        "secrecy.colluders is 0, the policy wants 2 at least; the line least_colluders = 0 in policy.toml "
        "would allow it",
    )
    assert _reason(Policy(least_colluders=2), some) is None
    assert _reason(Policy(least_colluders=2), vary(TERMS, secure_sum=True)) is None  # nobody shares noise


def test_a_policy_binds_the_roster_and_every_sum() -> None:
    assert Policy().demands(TERMS) == Demands(least_parties=4, least_voters=8, least_confirmed=None)
    policy = Policy(least_hospitals=9, every_signature=True, trusted=KNOWN, least_confirmed=7)
    wanted = Demands(least_parties=9, least_voters=9, every_signature=True, trusted=KNOWN, least_confirmed=7)
    assert policy.demands(TERMS) == wanted


@pytest.mark.parametrize(
    ("changes", "policy", "needed"),
    [
        ({}, Policy(), 0),  # plain votes are seen one by one whoever the others are
        ({"secure_sum": True}, Policy(), 4),  # six strangers sign no two sets of 8 of 10
        ({"secure_sum": True}, Policy(every_signature=True), 4),  # several rosters need no second signature
        ({"secure_sum": True}, Policy(least_confirmed=7), 7),
        ({"secure_sum": True}, Policy(least_confirmed=0), 0),
        ({"secure_sum": True}, Policy().rehearsed(), 0),
        ({"colluders": 2}, Policy(), 7),  # ε counts on the noise of all but two
        ({"colluders": 2}, Policy(least_confirmed=0), 7),
        ({"colluders": 2}, Policy(least_colluders=2), 4),
        ({"colluders": 0}, Policy(), 9),
    ],
)
def test_nothing_leaves_masked_before_others_are_confirmed(
    changes: dict[str, object], policy: Policy, needed: int
) -> None:
    noise = {"secure_sum": True, "noise_at": "hospitals", "sigma_party": 30.0}
    terms = vary(TERMS, **(noise if "colluders" in changes else {}), **changes)
    policy = replace(policy, plain_votes=True)
    assert policy.must_confirm(terms) == needed
    names = list(KNOWN)
    for count in range(10):
        found = replace(policy, trusted={name: KNOWN[name] for name in names[:count]}).objection(terms)
        if count >= needed:
            assert found is None
            continue
        assert found is not None and found[0] is Refusal.POLICY_CONFIRMED
        assert f"{needed} of the other 9 must be confirmed, {count} are" in found[1]
        assert "`pate-fed hospital accept --confirm NAME=WORDS`" in found[1]
        lines = "\n".join(re.findall(r"least_\w+ = \d+", found[1]))
        allowed = from_plain(Policy, {**to_plain(policy), **tomllib.loads(lines)}, where="")
        assert allowed.objection(terms) is None  # the lines that it names would allow it


@pytest.mark.parametrize(
    "before",
    [
        "",
        "plain_votes = true",
        '[trusted]\nh1 = "babab-babab-babab-babab-babab"  # old\n# a remark\n',
        "[trusted]  # x",
    ],
)
def test_what_is_confirmed_is_written_into_the_policy(before: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    if before:
        path.write_text(before, encoding="utf-8")
    two = {name: KNOWN[name] for name in ("h1", "h2")}
    confirm_in(path, two)
    assert Policy.load(path) == replace(Policy(plain_votes="plain" in before), trusted=two)
    confirm_in(path, {"h.3": KNOWN["h3"]})
    assert Policy.load(path).trusted == {**two, "h.3": KNOWN["h3"]}
    assert path.read_text().count("[trusted]") == 1 and ("# a remark" in before) == (
        "# a remark" in path.read_text()
    )


def test_a_table_of_another_form_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("trusted = {}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"write these lines into its table \[trusted\]: \"h1\" = "):
        confirm_in(path, {"h1": KNOWN["h1"]})
    assert path.read_text(encoding="utf-8") == "trusted = {}\n"


def test_a_limit_counts_what_was_answered_before() -> None:
    policy = Policy(most_queries=100, most_queries_a_day=50)
    assert policy.refuses_more(answered=42, today=42, asked=8) is None
    of_a_day, of_the_study = (
        policy.refuses_more(answered=answered, today=today, asked=9)
        for answered, today in ((42, 42), (92, 0))
    )
    assert of_a_day is not None and of_a_day[0] is Refusal.POLICY_DAY
    assert of_a_day[1].endswith("policy.toml allows most_queries_a_day = 50")
    assert of_the_study is not None and of_the_study[0] is Refusal.POLICY_QUERIES
    assert of_the_study[1].endswith("policy.toml allows most_queries = 100")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("most_querys = 3", "did you mean most_queries?"),
        ("most_queries = -1", "whole number"),
        ("most_queries = true", "whole number"),
        ("epsilon_public = nan", "finite"),
        ('epsilon_public = "3"', "finite"),
        ('studies = "lungs"', "list of texts"),
        ("plain_votes = 1", "true or false"),
        ("secure_sum = true", "votes leave masked only, unless plain_votes = true; take the line out"),
        ("secure_sum = false", "no longer a key of a policy"),
        ("= 3", "not valid TOML"),
        ("trusted = 3", "names and fingerprints"),
        ('units = ["ward"]', "a list of record, patient, hospital, label"),
        ('adjacencies = "replace-one"', "a list of replace-one, add-or-remove-one is meant"),
        ("least_colluders = -1", "whole number"),
        ("[trusted]\nnorth = 3", "names and fingerprints"),
        ('[trusted]\nnorth = "abcd"', "five words of five letters"),
    ],
)
def test_a_wrong_policy_is_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        Policy.load(path)
    assert words in str(caught.value)
    assert "policy.toml" in str(caught.value)
    assert "did you mean replace-one" not in str(caught.value)  # the very name that was given


def test_a_policy_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('studies = ["lungs"]\nmost_queries = 5\nepsilon_public = 3\nplain_votes = true\n')
    expected = Policy(studies=("lungs",), most_queries=5, epsilon_public=3.0, plain_votes=True)
    assert Policy.load(path) == expected
    path.write_text('every_signature = true\n[trusted]\nnorth = "LUSAB babad gutih tugad babab"\n')
    prints = {"north": "lusab-babad-gutih-tugad-babab"}
    assert Policy.load(path) == Policy(every_signature=True, trusted=prints)
    assert Policy.load(None) == Policy()


def test_a_policy_from_an_editor_that_marks_its_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_bytes(b"\xef\xbb\xbfmost_queries = 5\r\n")
    assert Policy.load(tmp_path / "policy.toml") == Policy(most_queries=5)
