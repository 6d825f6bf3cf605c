"""A real hospital's site: its own records, its copy of the public pool, its state directory.

`python -m pate_fed.client` writes what its user gave into a site file of its state directory; everything that
is read here stays in the house.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from clients.site import Site
from pate_fed.errors import InputError
from pate_fed.study import load_study, study_from_dict

__all__ = ["LocalSettings", "local_site"]

PART = "part:"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """What the hospital's user gave on the command line.

    `data` is a path, or part:I for a rehearsal: the records that party I of a simulation of `config` gets.
    """

    hospital: str
    data: str
    state_dir: Path
    config: Path | None = None

    @classmethod
    def read(cls, path: Path) -> LocalSettings:
        """From the site file that the launcher wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            hospital=values["hospital"],
            data=values["data"],
            state_dir=Path(values["state_dir"]),
            config=None if values.get("config") is None else Path(values["config"]),
        )


def local_site(settings: LocalSettings) -> Site:
    """The site of one hospital.

    Raises:
        InputError: the study of a rehearsal is not given, or the part is none of its parties'.
    """
    if settings.config is None:
        raise InputError("--data part:I: give --config with the study that is rehearsed")
    study = study_from_dict(load_study(settings.config)).resolve()
    number = settings.data.removeprefix(PART)
    if not number.isdigit() or int(number) >= study.parties.num_clients:
        raise InputError(
            f"--data {settings.data}: part:0 to part:{study.parties.num_clients - 1} is meant in a study of "
            f"{study.parties.num_clients} hospitals"
        )
    return Site(
        party=settings.hospital,
        number=int(number),
        study=study,
        state_dir=settings.state_dir,
        simulated=False,
    )
