"""What a node may pull and push: its own messages, and one bounded reply to each."""

from __future__ import annotations

import grpc
import pytest

from pate_fed.flower.deliveries import Deliveries, Refused, most_objects

NORTH, EAST, MOST = 1, 2, 1000


@pytest.fixture
def deliveries() -> Deliveries:
    """North was sent a message of two objects; a message of the study has 1,000 bytes at most."""
    made = Deliveries(MOST)
    made.deliver(NORTH, "asked", frozenset({"asked", "pool"}))
    return made


def _push(deliveries: Deliveries, name: str, size: int, *, node: int = NORTH, stored: bool = True) -> None:
    with deliveries.pushing(node, name, size) as is_stored:
        if stored:
            is_stored()


def test_a_node_pulls_and_confirms_what_was_sent_to_it_and_nothing_else(deliveries: Deliveries) -> None:
    deliveries.check_pull(NORTH, "pool")
    for refused in (
        lambda: deliveries.check_pull(EAST, "pool"),
        lambda: deliveries.check_pull(NORTH, "votes"),
        lambda: deliveries.confirm(EAST, "asked"),
    ):
        with pytest.raises(Refused):
            refused()
    deliveries.confirm(NORTH, "asked")
    with pytest.raises(Refused):
        deliveries.check_pull(NORTH, "pool")  # it has it


def test_a_reply_comes_in_parts_and_may_be_sent_again_until_it_is_whole(deliveries: Deliveries) -> None:
    for _ in range(2):  # the answer to the first attempt was lost
        deliveries.announce(NORTH, "asked", ["votes", "reply"], 100)
        deliveries.expect(NORTH, "asked", ["votes", "reply"])
    _push(deliveries, "votes", 800, stored=False)
    _push(deliveries, "votes", 800)  # what was not stored has taken no room
    _push(deliveries, "reply", 100)
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "asked", ["votes", "reply"], 100)  # one reply a message


@pytest.mark.parametrize("sizes", [(901,), (500, 401)])
def test_a_reply_has_the_bytes_of_the_largest_message_at_most(
    deliveries: Deliveries, sizes: tuple[int, ...]
) -> None:
    names = [f"part {number}" for number in range(len(sizes))]
    deliveries.announce(NORTH, "asked", names, 100)
    deliveries.expect(NORTH, "asked", names)
    for name, size in list(zip(names, sizes, strict=True))[:-1]:
        _push(deliveries, name, size)
    with pytest.raises(Refused) as caught:
        _push(deliveries, names[-1], sizes[-1])
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    _push(deliveries, names[-1], sizes[-1] - 1)


def test_nobody_pushes_what_it_was_not_asked_for(deliveries: Deliveries) -> None:
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "another", ["votes"], 1)
    with pytest.raises(Refused):
        deliveries.announce(EAST, "asked", ["votes"], 1)
    with pytest.raises(Refused):
        _push(deliveries, "votes", 1)  # not announced
    deliveries.announce(NORTH, "asked", ["votes"], 1)
    deliveries.expect(NORTH, "asked", ["votes", "another's"])
    for node, name in ((EAST, "votes"), (NORTH, "another's")):
        with pytest.raises(Refused):
            _push(deliveries, name, 1, node=node)
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "asked", ["other votes"], 1)


def test_neither_many_small_parts_nor_many_attempts_fill_the_store(deliveries: Deliveries) -> None:
    many = [str(number) for number in range(most_objects(MOST) + 1)]
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "asked", many, 1)
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "asked", ["votes"], MOST + 1)
    with pytest.raises(Refused):
        for _ in range(1000):
            deliveries.announce(NORTH, "asked", many[:-1], 1)
