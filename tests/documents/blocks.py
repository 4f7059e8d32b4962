"""Blocks of code of the pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """``number`` counts those of a language on the page; ``why`` it is not run, None where it is."""

    page: str
    number: int
    line: int
    language: str
    code: str
    why: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """Under which name it is to be saved, where its first line says that."""
        found = re.match(r"# (\w+\.py)\n", self.code)
        return None if found is None else found[1]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    numbers: dict[str, int] = {}
    found = []
    for match in _BLOCK.finditer(text):
        language = match["language"]
        number = numbers[language] = numbers.get(language, -1) + 1
        line = text.count("\n", 0, match.start("code"))
        found.append(Block(str(page.relative_to(TOP)), number, line, language, match["code"], match["why"]))
    return found


ALL = [block for page in PAGES for block in blocks_of(page)]
