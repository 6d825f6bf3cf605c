"""What shows a value to a person by accident shows nothing of a record, a teacher or a vote."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.data import Rows
from pate_fed.learning.teachers.forests import Forest
from pate_fed.privacy.planning.vote_model import past_votes
from server.state import Totals

SECRET = 7531
WHOLE, FLOAT = np.full(2, SECRET, dtype=np.int64), np.full(2, float(SECRET))


@pytest.mark.parametrize(
    "value",
    [
        Rows(np.full((2, 1), float(SECRET)), WHOLE, WHOLE),
        Forest(
            feature=WHOLE,
            threshold=FLOAT,
            left=WHOLE,
            right=WHOLE,
            value=np.full((2, 2), float(SECRET)),
            roots=WHOLE,
            fill=FLOAT,
            start=FLOAT,
        ),
        past_votes(np.array([[SECRET, 10_000 - SECRET]])),
        Totals(np.arange(1), np.full((1, 2), SECRET), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrays_of_private_things_are_not_in_a_repr(value: object) -> None:
    text = repr(value)
    assert str(SECRET) not in text and "0.75" not in text
