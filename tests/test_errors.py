"""The errors that a user can meet: each with an exit code of its own, as commands promise them."""

from __future__ import annotations

import pytest

from pate_fed import errors


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("PateFedError", 1),
        ("InputError", 2),
        ("BudgetError", 3),
        ("QuorumError", 4),
        ("PolicyError", 5),
        ("IntegrityError", 6),
    ],
)
def test_an_errors_exit_code_is_the_promised_one(name: str, code: int) -> None:
    error = getattr(errors, name)("what, where, and what would be right")
    assert isinstance(error, errors.PateFedError)
    assert (error.exit_code, str(error)) == (code, "what, where, and what would be right")
    assert f"{name} " in str(errors.__doc__)


def test_wrong_input_is_a_value_error_for_those_who_call_the_library() -> None:
    assert issubclass(errors.InputError, ValueError)


def test_a_torchvision_of_another_torch_is_a_sentence() -> None:
    with pytest.raises(errors.InputError, match=r"operator gone\): install both from the same index"):
        with errors.naming_mismatch():
            raise RuntimeError("operator gone\nand a long trace")
    with pytest.raises(errors.InputError, match="the user's own"), errors.naming_mismatch():
        raise errors.InputError("the user's own")
