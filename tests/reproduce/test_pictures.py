"""Pictures: a file of panels, curves of cells with a legend."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from pate_fed.reproduce.columns import cells_of
from pate_fed.reproduce.measures import draw_panels


@dataclass(frozen=True, slots=True)
class Row:
    student: str
    epsilon: float
    seed: int
    _: KW_ONLY
    accuracy: float


def test_panels_have_curves_and_a_legend(tmp_path: Path) -> None:
    rows = [Row(name, e, 0, accuracy=e / 10) for name in ("gan", "vat") for e in (1.0, 2.0)]
    cells = cells_of(rows, [(row.student, row.epsilon) for row in rows])
    drawn: list[Any] = []

    def draw(panels: list[Any]) -> None:
        drawn.extend(panels)
        for name, colour in (("gan", "#654321"), ("vat", "#123456")):
            mine = [cell for cell in cells if cell.task[0] == name]
            panels[0].plot(
                [c.task[1] for c in mine], [c.percent()[0] for c in mine], color=colour, label=name
            )

    draw_panels(tmp_path / "a.png", [("one", "x", "y"), ("two", "x", "")], draw)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert [text.get_text() for text in drawn[0].get_legend().get_texts()] == ["gan", "vat"]
    assert drawn[0].lines[0].get_ydata().tolist() == [10.0, 20.0]
    assert "#123456" in {line.get_color() for line in drawn[0].lines}
    assert drawn[1].get_legend() is None
