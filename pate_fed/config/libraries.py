"""The libraries that a study needs here, beyond those of a plain installation."""

from __future__ import annotations

from pate_fed.config.study import Study
from pate_fed.errors import require_libraries

IMAGES = ("torch", "torchvision", "matplotlib", "fontTools")


def require_study_libraries(study: Study) -> None:
    """Hold that what the study needs is installed, before anything is asked or spent.

    Raises:
        InputError: a library is missing; the message names the extra that brings it.
    """
    if study.data.dataset != "table":
        require_libraries(*IMAGES, what="a study of images")
    if study.engine.backend == "ray":
        require_libraries("ray", what="--backend ray (inline is the other)")
