"""The documentation's pictures as SVG: drawn from numbers, with the reader's own fonts, on a light card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

INK, MUTED, RULE, PAGE, CARD = "#22262b", "#626a73", "#d5d1ca", "#f6f5f2", "#ffffff"
BLUE, ORANGE, GREEN, RED, SOFT = "#2f6f9f", "#c9772b", "#3c8d74", "#9d2b2b", "#a9c4d8"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
VOTES = {"A": 12, "B": 201, "C": 8, "D": 29}
SIGMA = 40


@dataclass
class Picture:
    """An SVG that grows by shapes; `says` is what it shows, for whoever cannot see it."""

    width: int
    height: int
    says: str
    parts: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 14,
        colour: str = INK,
        at: str = "middle",
        bold: bool = False,
    ) -> None:
        """Words at a place; `at` is start, middle or end."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{at}"{weight}>'
            f"{escape(words)}</text>"
        )

    def lines(self, x: float, y: float, words: Sequence[str], **style: object) -> None:
        """Lines of words, one below the other."""
        for place, line in enumerate(words):
            self.text(x, y + 18 * place, line, **style)  # type: ignore[arg-type]

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = CARD, edge: str = RULE
    ) -> None:
        """A card."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="10" fill="{fill}" '
            f'stroke="{edge}" stroke-width="1.5"/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A bar without an edge."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{colour}"/>'
        )

    def arrow(
        self, x: float, y: float, to_x: float, to_y: float, *, colour: str = MUTED, dashed: bool = False
    ) -> None:
        """An arrow."""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        length = float(np.hypot(to_x - x, to_y - y))
        along_x, along_y = (to_x - x) / length, (to_y - y) / length
        base_x, base_y = to_x - 9 * along_x, to_y - 9 * along_y
        self.parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{base_x:.1f}" y2="{base_y:.1f}" '
            f'stroke="{colour}" stroke-width="2"{dashes}/>'
        )
        points = (
            (to_x, to_y),
            (base_x - 5 * along_y, base_y + 5 * along_x),
            (base_x + 5 * along_y, base_y - 5 * along_x),
        )
        corners = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        self.parts.append(f'<polygon points="{corners}" fill="{colour}"/>')

    def rule(
        self, x: float, y: float, to_x: float, to_y: float, *, colour: str = RULE, dashed: bool = True
    ) -> None:
        """A line."""
        dashes = ' stroke-dasharray="4 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" '
            f'stroke="{colour}" stroke-width="1.5"{dashes}/>'
        )

    def svg(self) -> str:
        """The file's text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" font-family="{FONT}">\n'
            f"<title>{escape(self.says)}</title>\n"
            f'<rect width="{self.width}" height="{self.height}" rx="12" fill="{PAGE}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def flow() -> Picture:
    """Who sees what, from the records to the published student."""
    picture = Picture(
        900,
        380,
        "Who sees what: records stay in the houses, votes leave, noise is added, a student is published",
    )
    for place, name in enumerate(("hospital", "hospital", "hospital …")):
        top = 56 + 100 * place
        picture.box(24, top, 230, 84, edge=BLUE)
        picture.text(139, top + 26, name, bold=True)
        picture.text(139, top + 48, "records  →  teacher", size=13)
        picture.text(139, top + 68, "both stay here", size=13, colour=BLUE)
        picture.arrow(258, top + 42, 372, 190 + 10 * (place - 1))
    picture.text(316, 62, "votes on", size=13, colour=MUTED)
    picture.text(316, 79, "public inputs", size=13, colour=MUTED)
    picture.text(316, 322, "or masked", size=13, colour=MUTED)
    picture.text(316, 339, "sums of them", size=13, colour=MUTED)
    picture.box(378, 118, 210, 144, edge=ORANGE)
    picture.text(483, 146, "coordinator", bold=True)
    picture.lines(483, 172, ("adds up and adds noise", "writes the ledger", "trains the student"), size=13)
    picture.text(483, 244, "never a record or a model", size=13, colour=ORANGE)
    picture.box(378, 300, 210, 52)
    picture.text(483, 323, "public inputs", bold=True, size=13)
    picture.text(483, 341, "everybody may know them", size=12, colour=MUTED)
    picture.arrow(483, 298, 483, 266)
    picture.arrow(592, 190, 664, 190)
    picture.box(670, 96, 206, 188, edge=GREEN)
    picture.text(773, 124, "everyone", bold=True)
    picture.lines(773, 150, ("the student", "its noisy labels", "the ledger, a report"), size=13)
    picture.lines(773, 224, ("(ε, δ) bounds what they", "tell about one record"), size=13, colour=GREEN)
    for x, words in ((139, "IN THE HOUSE"), (483, "SEES VOTES, OR ONLY SUMS"), (773, "PUBLISHED")):
        picture.text(x, 34, words, size=12, colour=MUTED, bold=True)
    return picture


def teachers() -> Picture:
    """Records dealt out to teachers; one record is followed."""
    picture = Picture(
        900, 250, "Records in disjoint parts: the marked record is in one part and can change one teacher"
    )
    rng = np.random.default_rng(1)
    for part in range(4):
        left = 40 + 215 * part
        picture.box(left, 40, 175, 84)
        for row in range(3):
            for column in range(7):
                marked = (part, row, column) == (1, 1, 3)
                colour = RED if marked else (SOFT if rng.random() < 0.6 else BLUE)
                picture.bar(left + 16 + 21 * column, 54 + 20 * row, 15, 14, colour)
        picture.arrow(left + 87, 128, left + 87, 166, colour=RED if part == 1 else MUTED)
        picture.box(left + 22, 170, 131, 44, edge=RED if part == 1 else BLUE)
        picture.text(left + 87, 197, f"teacher {part + 1}", bold=True)
    picture.text(40, 28, "records, in disjoint parts", size=13, colour=MUTED, at="start")
    picture.text(860, 238, "one record (red) can change one teacher", size=13, colour=RED, at="end")
    return picture


def votes() -> Picture:
    """One query: the votes, a neighbour's, and the votes with noise drawn from a seed."""
    noisy = {
        name: round(count + noise)
        for (name, count), noise in zip(
            VOTES.items(), np.random.default_rng(4).normal(0, SIGMA, 4), strict=True
        )
    }
    neighbour = {**VOTES, "B": VOTES["B"] - 1, "D": VOTES["D"] + 1}
    picture = Picture(
        900,
        300,
        "Votes for four classes; the same with one vote moved; with noise, of which only the winner is told",
    )
    titles = ("the votes", "one record replaced: one vote moves", f"with noise (σ = {SIGMA} votes)")
    for panel, (title, counts) in enumerate(zip(titles, (VOTES, neighbour, noisy), strict=True)):
        left = 30 + 290 * panel
        picture.text(left + 130, 34, title, bold=True)
        base, scale = 232, 0.72
        for place, (name, count) in enumerate(counts.items()):
            x = left + 22 + 60 * place
            winner = panel == 2 and count == max(noisy.values())
            colour = GREEN if winner else BLUE if panel < 2 else SOFT
            height = max(abs(count) * scale, 1)
            picture.bar(x, base - height if count >= 0 else base, 38, height, colour)
            # A bar below the line has its number above the line.
            picture.text(x + 19, (base - height if count >= 0 else base) - 6, str(count), size=13)
            picture.text(x + 19, base + (20 if count >= 0 else 20 + height), name, size=14, bold=winner)
        picture.rule(left + 10, base, left + 256, base, dashed=False)
    picture.text(320, 284, "told apart only by one vote", size=13, colour=MUTED)
    picture.text(740, 284, "published: B, and nothing else", size=13, colour=GREEN)
    return picture


def student() -> Picture:
    """From noisy labels to the published student."""
    picture = Picture(
        900, 190, "Public inputs with noisy labels, and those without, teach a student, which is published"
    )
    picture.box(30, 40, 220, 110)
    picture.text(140, 66, "public inputs", bold=True)
    picture.lines(140, 92, ("some with a noisy label", "the rest without any"), size=13)
    picture.text(140, 138, "no private record", size=13, colour=BLUE)
    picture.arrow(256, 95, 334, 95)
    picture.box(340, 40, 220, 110, edge=ORANGE)
    picture.text(450, 66, "student", bold=True)
    picture.lines(450, 92, ("learns that labels are", "sometimes wrong"), size=13)
    picture.arrow(566, 95, 644, 95)
    picture.box(650, 40, 220, 110, edge=GREEN)
    picture.text(760, 66, "published", bold=True)
    picture.lines(760, 92, ("asked and copied freely:", "costs no more ε"), size=13, colour=GREEN)
    return picture


def masks() -> Picture:
    """Three hospitals' votes under masks of pairs, and their sum."""
    picture = Picture(900, 270, "Three hospitals add masks to their votes that cancel in the sum")
    rows = (
        ("north", "3", "+ p  + q", "votes + p + q"),
        ("east", "1", "- p  + r", "votes - p + r"),
        ("west", "0", "- q  - r", "votes - q - r"),
    )
    for x, head in (
        (100, "hospital"),
        (235, "its votes"),
        (385, "masks of pairs"),
        (590, "what leaves"),
        (790, "the sum"),
    ):
        picture.text(x, 32, head, size=13, colour=MUTED)
    for place, (name, count, added, sent) in enumerate(rows):
        top = 50 + 66 * place
        picture.box(30, top, 430, 52, edge=BLUE)
        picture.text(100, top + 32, name, bold=True)
        picture.text(235, top + 32, count, size=18)
        picture.text(385, top + 32, added, size=16, colour=ORANGE)
        picture.arrow(466, top + 26, 496, top + 26)
        picture.box(500, top, 180, 52)
        picture.text(590, top + 23, sent, size=14)
        picture.text(590, top + 42, "looks like chance", size=12, colour=MUTED)
        picture.arrow(684, top + 26, 722, 142 + 12 * (place - 1))
    picture.box(728, 92, 140, 100, edge=GREEN)
    picture.text(798, 134, "4", size=30, bold=True, colour=GREEN)
    picture.text(798, 162, "p, q, r cancel", size=13, colour=MUTED)
    picture.text(
        30,
        258,
        "p, q and r are random numbers mod 2³² that two hospitals share and the coordinator does not know",
        size=13,
        colour=MUTED,
        at="start",
    )
    return picture


PICTURES = {"flow": flow, "teachers": teachers, "votes": votes, "student": student, "masks": masks}
