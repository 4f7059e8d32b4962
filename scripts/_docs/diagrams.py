"""Diagrams of the pages, drawn once by Mermaid and kept as pictures: see ``scripts/diagrams``."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DIAGRAMS = Path(__file__).parents[2] / "docs" / "diagrams"
LOOK = Path(__file__).with_name("diagrams.json")
MERMAID = "@mermaid-js/mermaid-cli@11.17.0"
_TIMEOUT_S = 300
#: A picture is a card of its own colours, light or dark as the reader has it, whatever the page behind it is.
_DARK = "@media (prefers-color-scheme: dark){svg{filter:invert(.87) hue-rotate(180deg)}}"


def mark(source: str) -> str:
    """What a picture says of the source and the look that it was drawn from."""
    return f"<!-- {hashlib.sha256((source + LOOK.read_text()).encode()).hexdigest()[:16]} -->"


def out_of_date(directory: Path = DIAGRAMS) -> list[Path]:
    """Sources whose picture is missing, or was drawn from another text."""
    return [source for source in sorted(directory.glob("*.mmd")) if not _is_drawn(source)]


def _is_drawn(source: Path) -> bool:
    picture = source.with_suffix(".svg")
    return picture.is_file() and picture.read_text().endswith(mark(source.read_text()) + "\n")


def finished(svg: str, source: str) -> str:
    """What Mermaid drew, with a size of its own, which a picture on a page needs, and both looks."""
    box = re.search(r'viewBox="([-\d.]+) ([-\d.]+) ([\d.]+) ([\d.]+)"', svg)
    if box is None:
        raise ValueError("the picture has no viewBox: has Mermaid changed what it writes?")
    x, y, width, height = (float(number) for number in box.groups())
    # A background of the root is not filtered, a shape is.
    card = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="#fff"/>'
    svg = svg.strip().replace('width="100%"', f'width="{round(width)}" height="{round(height)}"', 1)
    svg = svg.replace(" background-color: transparent;", "", 1).replace(">", f">{card}", 1)
    svg = svg.replace("</style>", f"{_DARK}</style>", 1)
    return f"{svg}\n{mark(source)}\n"


def draw(sources: list[Path]) -> None:
    """Raises subprocess.CalledProcessError where Mermaid refuses a source."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    npx = shutil.which("npx")
    if npx is None or chromium is None:
        sys.exit("error: drawing diagrams needs npm and Chromium: apt-get install npm chromium")
    environment = {**os.environ, "PUPPETEER_SKIP_DOWNLOAD": "1"}
    with tempfile.TemporaryDirectory() as directory:
        browser, drawn = Path(directory) / "browser.json", Path(directory) / "drawn.svg"
        # In a container, or as root, Chromium has no sandbox; it is shown files of this repository alone.
        browser.write_text(json.dumps({"executablePath": chromium, "args": ["--no-sandbox"]}))
        for source in sources:
            given: list[str | Path] = ["-q", "-p", browser, "-c", LOOK, "-b", "transparent", "-i", source, "-o", drawn]
            command: list[str | Path] = [npx, "--yes", "--package", MERMAID, "mmdc", *given]
            subprocess.run(command, env=environment, timeout=_TIMEOUT_S, check=True)
            source.with_suffix(".svg").write_text(finished(drawn.read_text(), source.read_text()))
            print(source.with_suffix(".svg").name)


if __name__ == "__main__":
    draw(out_of_date())
