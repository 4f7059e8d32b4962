"""Hooks of MkDocs: pages are written to be read in the repository, and this makes of them what a site needs."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)")
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->\n", re.MULTILINE)
_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):<code>([^<]*)</code>")


def slug(text: str, separator: str) -> str:
    """The anchor of a heading, as where the repository is shown: pages link to these."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def on_page_markdown(markdown: str, page: Any, **more: Any) -> str:
    """Links to what is no page become text, and what is not run says so."""
    folder = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[2].partition("#")[0]))
        outside = target.startswith("..") or found[2].endswith("/")
        return found[1] if outside else found[0]

    text = _LINK.sub(link, markdown)
    text = re.sub(r"^(\s*- )\[ \] ", r"\1&#9744; ", text, flags=re.MULTILINE)
    return _NOT_RUN.sub(lambda found: f"*Not run by the tests: {found[1]}.*\n\n", text)


def on_page_content(html: str, **more: Any) -> str:
    """Docstrings name things by Sphinx's roles."""

    def name(found: re.Match[str]) -> str:
        text = found[1]
        return f"<code>{text.rpartition('.')[2] if text.startswith('~') else text}</code>"

    return _ROLE.sub(name, html).replace("::</p>", ":</p>")
