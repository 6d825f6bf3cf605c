"""`pate-fed data`: a data set drawn or read, and shown."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path

from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.data import DATASETS
from pate_fed.disk import check_file_path

__all__ = ["add_data_command"]


def add_data_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `data`."""
    data = add_command(commands, "data", "draw or read a data set, and show it")
    data.add_argument("dataset", metavar="NAME", help=", ".join(DATASETS))
    add_option(data, "--preview FILE.png", "write a contact sheet: images of each class")
    add_option(data, "--data-dir DIR", "folder of the data files (default $PATE_FED_DATA)")
    add_option(data, "--download", "let torchvision fetch missing files")
    add_option(data, "--classes N", "glyph: classes, 2 to 150 (default 10)")
    add_option(data, "--private N", "glyph: private images (default 60000)")
    add_option(data, "--public N", "glyph: public images (default 10000)")
    add_option(data, "--seed N", "glyph: of images and labels (default 0)")
    data.set_defaults(run=_data)


def _data(arguments: argparse.Namespace) -> int:
    from pate_fed.data import GlyphSettings, contact_sheet, load_dataset
    from pate_fed.report.terminal import counted_phase, make_progress

    if arguments.preview:
        check_file_path(Path(arguments.preview), option="--preview")
    glyph = GlyphSettings()
    chosen = {
        entry.name: getattr(arguments, entry.name)
        for entry in fields(glyph)
        if getattr(arguments, entry.name, None) is not None
    }
    folder = None if arguments.data_dir is None else Path(arguments.data_dir)
    with counted_phase(make_progress(quiet=False), "drawing, once") as drawn:
        dataset = load_dataset(
            arguments.dataset,
            glyph=replace(glyph, **chosen),
            data_dir=folder,
            download=arguments.download,
            on_progress=drawn,
        )
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
