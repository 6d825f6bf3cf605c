"""`pate-fed data`: a data set drawn or read, and shown."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path

from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.data import DATASETS
from pate_fed.disk import check_file_path
from pate_fed.errors import InputError


def add_data_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `data`."""
    data = add_command(commands, "data", "draw or read a data set, and show it")
    data.add_argument("dataset", metavar="NAME", help=f"{', '.join(DATASETS)}, or module:attribute")
    add_option(data, "--preview FILE.png", "write a contact sheet: images of each class")
    add_option(data, "--data-dir DIR", "folder of the data files (default $PATE_FED_DATA)")
    add_option(data, "--download", "let torchvision fetch missing files")
    add_option(data, "--classes N", "glyph: classes, 2 to 150 (default 10)")
    add_option(data, "--private N", "glyph: private images (default 60000)")
    add_option(data, "--public N", "glyph: public images (default 10000)")
    add_option(data, "--seed N", "glyph: of images and labels (default 0)")
    data.set_defaults(run=_data)


def _data(arguments: argparse.Namespace) -> int:
    from pate_fed.config.data import load_study_data
    from pate_fed.config.sections import Data
    from pate_fed.config.study import Study
    from pate_fed.data import GlyphSettings, contact_sheet
    from pate_fed.report.terminal import counted_phase, make_progress
    from pate_fed.structure.parts import is_part, search_folder

    if arguments.preview:
        check_file_path(Path(arguments.preview), option="--preview")
    search_folder(Path.cwd())
    if arguments.dataset not in DATASETS and not is_part(arguments.dataset, "dataset"):
        raise InputError(
            f"{arguments.dataset}: one of {', '.join(DATASETS)} or module:attribute of your own is meant; a "
            "study of your own files is shown by flower-simulation --config study.toml --dry-run"
        )
    glyph = GlyphSettings()
    chosen = {
        entry.name: getattr(arguments, entry.name)
        for entry in fields(glyph)
        if getattr(arguments, entry.name, None) is not None
    }
    data = Data(
        dataset=arguments.dataset,
        data_dir=arguments.data_dir,
        download=arguments.download,
        glyph=replace(glyph, **chosen),
    )
    with counted_phase(make_progress(quiet=False), "drawing, once") as drawn:
        dataset = load_study_data(Study(data=data), drawn)
    if arguments.preview and dataset.public_images.ndim == 2:
        raise InputError(f"--preview {arguments.preview}: {dataset.name} has rows, and no images to show")
    print(
        f"{dataset.name}: {len(dataset.private_labels)} private, {len(dataset.public_labels)} public "
        f"({dataset.num_queries} to ask about), {dataset.num_classes} classes, "
        f"{'×'.join(map(str, dataset.public_images.shape[1:]))}"
    )
    print(f"public pool SHA-256 {dataset.pool_digest}")
    if arguments.preview:
        contact_sheet(dataset, Path(arguments.preview))
        print(f"wrote {arguments.preview}")
    return 0
