"""Near hospitals on a ring: each part of the proof in docs/proofs/neighbours.md, against plain searches,
and its theorem against a plain play of the coordinator's choices.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import QuorumError
from pate_fed.secure_sum import Demands, SumRefusal, fingerprint, threshold_for
from pate_fed.secure_sum import graph as graphs
from pate_fed.secure_sum.graph import Graph, keys_for, shape, told_by
from pate_fed.secure_sum.messages import consent_digest, sharing_view


def _at_least(count: int, marked: int, drawn: int, found: int) -> Fraction:
    ways = sum(
        math.comb(marked, each) * math.comb(count - marked, drawn - each)
        for each in range(found, min(marked, drawn) + 1)
    )
    return Fraction(ways, math.comb(count, drawn))


@pytest.mark.parametrize("count", [200, 257, 1000])
@pytest.mark.parametrize("share", [0, 0.3])
def test_a_bad_ring_takes_2_to_the_128_tries_and_one_of_less_reach_fewer(count: int, share: float) -> None:
    threshold, colluders = threshold_for(count), int(share * count)
    size, least = shape(count, threshold, colluders)
    told, lost = told_by(count, colluders), count // 10

    def serves(size: int, least: int) -> tuple[bool, bool]:
        bad = count * (count + 1) // 2 * _at_least(count, told, size - 1, 2 * least - size - 1)
        fails = count * _at_least(count, lost, size, size - least + 1)
        return bad <= Fraction(1, 2**128), fails <= Fraction(1, 2**20)

    assert size < count and serves(size, least) == (True, True)
    assert not all(serves(size, least + 1))
    assert count > 257 or not any(all(serves(size - 2, each)) for each in range(size // 2, size - 1))


def test_below_200_or_where_no_fewer_serve_all_mask_with_all() -> None:
    assert shape(199, 133, 0) == (199, 133) and shape(200, 134, 0)[0] < 200
    assert shape(1000, 667, 334) == (1000, 667)  # two quorums could have colluders alone in common
    assert keys_for(12, 8, 0) == 12 and keys_for(1000, 667, 0) >= shape(1000, 667, 0)[0]
    for places in (230, 400, 1000):
        for colluders in (0, 70):
            least = threshold_for(places)
            most = keys_for(places, least, colluders)
            assert all(shape(count, least, colluders)[0] <= most for count in range(least, places + 1, 7))


def _good(told: set[int], count: int, reach: int, least: int) -> bool:
    """Whether the ring is one of those that the proof calls good."""
    limit = 2 * least - 2 * reach - 2
    arcs = [{(v + step) % count for step in range(1, reach + 1)} for v in range(count)]
    crowded = any(len(one & told) + len(two & told) >= limit for one in arcs for two in arcs if not one & two)
    near = ({(v + step) % count for step in range(-reach, reach + 1)} for v in set(range(count)) - told)
    return not crowded and all(len(each & told) <= limit for each in near)


def _cut_apart(told: set[int], count: int, reach: int, least: int) -> bool:
    """Whether some set of survivors falls into parts, by trying all of them: slow and plain."""
    honest = [place for place in range(count) if place not in told]
    near = {v: {(v + step) % count for step in range(-reach, reach + 1)} for v in range(count)}
    for lost in itertools.chain.from_iterable(itertools.combinations(honest, k) for k in range(7)):
        there = set(range(count)) - set(lost)
        if any(len(near[v] & there) < least for v in range(count)):
            continue
        rest = there - told
        seen, todo = set[int](), [min(rest)]
        while todo:
            each = todo.pop()
            if each not in seen:
                seen.add(each)
                todo += near[each] & rest
        if seen != rest:
            return True
    return False


@pytest.mark.parametrize(("reach", "least", "told"), [(2, 4, 2), (2, 4, 4), (2, 5, 4), (3, 5, 3), (3, 6, 4)])
def test_no_good_ring_is_cut_apart_by_any_choice_of_who_is_lost(reach: int, least: int, told: int) -> None:
    """All places of colluders on a ring of 12, and all sets of survivors that hospitals would sign."""
    count, found = 12, Counter[tuple[bool, bool]]()
    for each in itertools.combinations(range(1, count), told - 1):  # one is at 0: all turns are alike
        there = {0, *each}
        found[_good(there, count, reach, least), _cut_apart(there, count, reach, least)] += 1
    assert not found[True, True] and sum(found.values()) == math.comb(count - 1, told - 1)
    bad = found[False, False] + found[False, True]
    assert bad <= sum(found.values()) * 78 * _at_least(count, told, 2 * reach, 2 * least - 2 * reach - 2)


def test_bad_rings_can_be_cut_apart() -> None:
    """The search finds what is there: two arcs of colluders, each with one lost beside it."""
    assert _cut_apart({1, 7}, 12, 2, 4) and not _good({1, 7}, 12, 2, 4)
    assert _good({1}, 12, 2, 4) and not _cut_apart({1}, 12, 2, 4)


def _parts(
    near: list[set[int]], shown: dict[int, set[int]], lost: set[int], honest: set[int], bare: set[int]
) -> list[set[int]]:
    """What sums a coordinator can learn: of those `bare` of their own masks, whose others all cancel."""
    left, alone = set(bare), True
    while alone:  # a mask that no other one has, and that nobody reveals, hides a vector for good
        others = {v: (shown[v] & near[v] & honest) - {v} - lost for v in left}
        alone = any(not all(w in left and v in shown[w] for w in others[v]) for v in left)
        left = {v for v in left if all(w in left and v in shown[w] for w in others[v])}
    parts = list[set[int]]()
    while left:
        part, todo = set[int](), [left.pop()]
        while todo:
            each = todo.pop()
            part.add(each)
            todo += shown[each] & near[each] & left
            left -= near[each] & shown[each]
        parts.append(part)
    return parts


def _breaches(without: str, tries: int) -> tuple[int, int]:
    """Plain play of rings of 12 to 18: rounds that hospitals go along with, and those that tell too much.

    The coordinator chooses at random who is lost, who signs, and whom each that does not sign is shown.
    """
    drawn, played, broken = random.Random(1), 0, 0

    def fewer(of: set[int], most: int) -> set[int]:
        return of - set(drawn.sample(sorted(of), drawn.randint(0, max(0, most))))

    for _ in range(tries):
        count, reach, told_count = drawn.randint(12, 18), drawn.randint(2, 4), drawn.randint(1, 5)
        size, everyone = 2 * reach + 1, set(range(count))
        least, quorum = drawn.randint(reach + 2, size), (count + told_count) // 2 + 1
        told = set(drawn.sample(sorted(everyone), told_count))
        near = [{(v + step) % count for step in range(-reach, reach + 1)} for v in range(count)]
        sharers = fewer(everyone, 2)
        survivors = fewer(sharers, 3)
        signers, honest = fewer(survivors, 4), everyone - told
        ring = without == "ring" or _good(told, count, reach, least)
        if not ring or len(signers) < quorum:
            continue
        if any(len(near[v] & survivors) < least for v in sharers):
            continue
        gives = {v for v in signers if all(len(near[w] & signers) >= least for w in sharers & near[v])} | told
        bare = {v for v in survivors & honest if len(near[v] & gives) >= least}
        played += bool(bare)
        keeps = 1 if without == "sharers" else least
        there = survivors & honest
        shown = {
            v: sharers
            if v in signers
            else everyone - set(drawn.sample(sorted(near[v] - {v}), drawn.randint(0, size - keeps)))
            for v in there
        }
        parts = _parts(near, shown, sharers - survivors, honest, bare)
        broken += parts not in ([], [there])
    return played, broken


def test_no_choice_of_the_coordinators_tells_more_than_one_sum() -> None:
    played, broken = _breaches("", 6_000)
    assert played > 250 and broken == 0


@pytest.mark.parametrize("rule", ["ring", "sharers"])
def test_without_a_good_ring_or_enough_near_sharers_it_tells_more(rule: str) -> None:
    played, broken = _breaches(rule, 2_000)
    assert broken > 0, played


def test_without_enough_near_signers_an_arc_is_learnt() -> None:
    """Two that did not sign, each beside a lost one, were shown one sharer less: four of ten survivors."""
    everyone, lost = set(range(12)), {3, 10}
    near = [{(v + step) % 12 for step in range(-2, 3)} for v in range(12)]
    shown = {**dict.fromkeys(everyone - lost, everyone), 2: everyone - {4}, 11: everyone - {9}}
    assert all(len(near[v] - lost) >= 4 for v in everyone)  # as it takes to sign
    assert _parts(near, shown, lost, everyone, everyone - lost) == [{11, 0, 1, 2}]
    signers = everyone - lost - {2, 11}
    assert all(any(len(near[w] & signers) < 4 for w in near[v]) for v in signers)  # nobody reveals a share


def test_the_ring_is_the_same_both_ways_and_follows_from_the_digest() -> None:
    first, again, other = (Graph.of(digest * 32, 300, 200, 0) for digest in ("ab", "ab", "cd"))
    np.testing.assert_array_equal(first.order, again.order)
    assert (first.order != other.order).sum() > 250
    assert sorted(first.order.tolist()) == list(range(300))
    for position in (0, 17, 299):
        near = first.near(position)
        assert len(set(near.tolist())) == first.size == 115 and position in near
        for slot, each in enumerate(near.tolist()):
            assert first.slot(position, each) == slot and position in first.near(each)
        np.testing.assert_array_equal(first.among(position, np.arange(300)), np.sort(near))
    present = np.flatnonzero(np.random.default_rng(0).random(300) < 0.8)
    owners = np.array([3, 4, 250])
    counted = [len(np.intersect1d(first.near(each), present)) for each in owners.tolist()]
    assert first.fewest(owners, present) == min(counted)


def test_each_is_near_every_other_one_equally_often() -> None:
    """Of 400 rings of 201: two given hospitals are near each other as often as chance has it."""
    met = sum(int(Graph.of(f"{at:064x}", 201, 134, 0).slot(5, 77) < 81) for at in range(400))
    assert abs(met - 400 * 80 / 200) < 5 * math.sqrt(400 * 0.4 * 0.6)


N, REACH, LEAST = 15, 3, 6


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few hospitals on a ring, as if they were many: seven hold shares, six open a secret."""
    monkeypatch.setattr(graphs, "shape", lambda count, *_: (2 * REACH + 1, LEAST))
    monkeypatch.setattr("pate_fed.secure_sum.coordinator.shape", lambda count, *_: (2 * REACH + 1, LEAST))
    yield


VECTORS = np.arange(N * 4, dtype=np.int64).reshape(N, 4)


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("step", ["share", "mask", "consent", "unmask"])
def test_a_sum_is_exact_and_one_may_be_lost_near_each(federation: Any, step: str) -> None:
    parties = federation(N, restart=True)
    graph = parties.coordinator.members.graph
    first = int(graph.order[0])
    left = [at for at in range(N) if at != first or step in ("consent", "unmask")]
    total = parties.total(VECTORS, drop={step: [first]})
    np.testing.assert_array_equal(total, VECTORS[left].sum(axis=0))
    far = [first, int(graph.order[N // 2])]  # near nobody together
    assert parties.total(VECTORS, drop={step: far}).shape == (4,)
    with pytest.raises(QuorumError, match="near one of them 5 of 7; 6 are needed"):
        parties.total(VECTORS, drop={step: graph.order[:2].tolist()})


def _shown(parties: Any, batch: Any, good: Any, away: list[int]) -> Any:
    """The request to mask as a coordinator makes it that shows a hospital fewer sharers."""
    graph, members = parties.coordinator.members.graph, parties.coordinator.members
    place, sharers = members.positions[good.party], np.setdiff1d(np.arange(N), away)
    parts = [batch._dealt[at].part(graph.slot(at, place)) for at in graph.among(place, sharers).tolist()]
    sealed, commitments = (b"".join(each) for each in zip(*parts, strict=True))
    dealt = b"".join(batch._dealt[at].digest for at in sharers.tolist())
    return parties.signed(good, sharers=sharers, dealt=dealt, sealed=sealed, commitments=commitments)


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("away", [[0, 1], [0, 1, 2, 4, 5]])
def test_a_victim_whose_neighbours_are_said_to_be_away_gives_nothing(
    federation: Any, away: list[int]
) -> None:
    """Enough in all, and too few of those near: its vector would lie bare once its own mask is taken off."""
    parties = federation(N)
    graph, batch = parties.coordinator.members.graph, parties.until("share", VECTORS)
    victim = int(graph.order[4])
    name, near = parties.names[victim], graph.near(victim)
    request = _shown(parties, batch, batch.mask_requests()[name], near[away].tolist())
    assert len(request.sharers) >= parties.coordinator.members.threshold
    parties.refused(name, request, SumRefusal.SHARERS, VECTORS[victim])


@pytest.mark.usefixtures("ring")
def test_nobody_signs_that_two_near_a_third_are_lost(federation: Any) -> None:
    """The coordinator picks who is lost when it knows the ring: two arcs around some would cut them off."""
    parties = federation(N)
    graph, batch = parties.coordinator.members.graph, parties.until("mask", VECTORS)
    notice = batch.survivor_notice()
    gone = graph.order[:2].tolist()
    left = np.array([each for each in range(N) if each not in gone])
    far = parties.names[int(graph.order[8])]  # none of the two is near it
    parties.refused(far, parties.signed(notice, survivors=left), SumRefusal.SURVIVORS)


@pytest.mark.usefixtures("ring")
def test_signers_must_be_near_each_whose_share_is_revealed(federation: Any) -> None:
    """Above the quorum, and with two near ones that did not sign: they may have been shown others."""
    parties = federation(N)
    graph, batch = parties.coordinator.members.graph, parties.until("consent", VECTORS)
    request = batch.unmask_request()
    signers = [each for each in range(N) if each not in graph.order[:2].tolist()]
    consents = b"".join(batch._consents[each] for each in signers)
    few = parties.signed(request, consenting=np.array(signers), consents=consents)
    parties.refused(parties.names[int(graph.order[4])], few, SumRefusal.CONSENT)
    assert parties.ask(parties.names[int(graph.order[8])], few).kind == "sum.unmasked"  # near none of the two
    assert len(signers) >= parties.coordinator.members.threshold


@pytest.mark.usefixtures("ring")
def test_who_was_shown_other_sharers_accepts_no_signature(federation: Any) -> None:
    parties = federation(N)
    graph, batch = parties.coordinator.members.graph, parties.until("share", VECTORS)
    victim, away = parties.names[int(graph.order[4])], int(graph.order[11])
    requests = dict(batch.mask_requests())
    other = _shown(parties, batch, requests[victim], [away])
    for name in parties.names:
        reply = parties.ask(name, other if name == victim else requests[name], VECTORS[0])
        if name != victim:
            batch.take(reply)
    batch._masked.add(parties.coordinator.members.positions[victim])  # its vector is in the sum, it says
    notice = batch.survivor_notice()
    signed = [(name, parties.ask(name, notice)) for name in parties.names if name != victim]
    left = parties.signed(notice, survivors=other.sharers)
    own = parties.ask(victim, left)
    assert own.view == consent_digest(sharing_view(batch.opening, other.sharers, other.dealt), other.sharers)
    for _, reply in signed:
        batch.take(reply)
    parties.refused(victim, batch.unmask_request(), SumRefusal.CONSENT)


@pytest.mark.usefixtures("ring")
def test_a_graph_for_other_colluders_is_refused(federation: Any) -> None:
    parties = federation(N, pin=False)
    pin = parties.pin("hospital-00", colluders=1)
    parties.refused("hospital-00", pin, SumRefusal.THRESHOLD)


@pytest.mark.usefixtures("ring")
def test_of_the_confirmed_those_near_count(federation: Any) -> None:
    parties = federation(N, pin=False)
    graph, zero = parties.coordinator.members.graph, parties.names[0]
    near = [parties.names[each] for each in graph.near(0).tolist() if each != 0]
    far = [name for name in parties.names if name not in near and name != zero]
    for names, refused in ((far[:2], True), (near[:1] + far, True), (near[:2], False)):
        trusted = {name: fingerprint(parties.identities[name].public) for name in names}
        parties.demands = Demands(least_confirmed=2, trusted=trusted)
        parties.rebuild(zero)
        if refused:
            parties.refused(zero, parties.pin(zero), SumRefusal.CONFIRMED)
        else:
            parties.ask(zero, parties.pin(zero))


@pytest.mark.slow
def test_200_hospitals_with_twelve_lost_come_to_their_sum(federation: Any) -> None:
    parties = federation(200)
    graph = parties.coordinator.members.graph
    assert (graph.size, graph.least) == (81, 62)
    vectors = np.random.default_rng(1).integers(0, 50, size=(200, 7))
    gone = {"share": range(0, 40, 10), "mask": range(1, 41, 10), "consent": range(2, 42, 10)}
    left = [each for each in range(200) if each not in {*gone["share"], *gone["mask"]}]
    np.testing.assert_array_equal(parties.total(vectors, drop=gone), vectors[left].sum(axis=0))
