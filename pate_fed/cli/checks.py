"""Checks of options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pate_fed.errors import InputError

__all__ = ["check_picture_path", "name_option"]


def check_picture_path(option: str, given: str) -> None:
    """Make sure that a picture can be written there, before the work is done.

    Raises:
        InputError: it cannot.
    """
    path = Path(given)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{option} {given}: no file can be written there; give a path such as sheet.png")


def name_option(error: InputError, options: Mapping[str, str]) -> InputError:
    """An error that begins with PARAMETER=, about the option that the parameter was given with."""
    parameter, _, rest = str(error).partition("=")
    return InputError(f"{options[parameter]} {rest}") if parameter in options else error
