"""What a hospital must never show."""

from __future__ import annotations

from typing import Any


def secrets_of(parties: Any, name: str) -> list[bytes]:
    """Every long-term and batch secret of a hospital."""
    machine = parties.hospitals[name]
    found = [parties.identities[name].to_bytes()]
    if machine._state.seat is not None:
        seat = machine._state.seat
        found += [secret for secret in map(seat.secret, range(seat.members.graph.size)) if any(secret)]
    else:
        found.append(machine._state.exchange_key.to_bytes())
    for progress in machine._batches.values():
        found += [limbs.astype("<u2").tobytes() for limbs in progress.held.reshape(-1, 17)]
    return found
