"""Tables that commands print."""

from __future__ import annotations

import pytest

from lsmq.cli import render


def test_a_table_that_is_too_long_to_be_drawn_has_a_line_for_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "_MOST_DRAWN", 2)
    rows = [["a", 1, None], ["two\nlines\x1b[31m", 1_000, 0.5], ["ccc", 22, True]]
    render.print_table(["queue", "lag", "rate"], rows)
    assert capsys.readouterr().out.splitlines() == [
        " queue                lag  rate",
        " ------------------------------",
        " a                      1  -",
        " two\\nlines\\x1b[31m  1000  0.5",
        " ccc                   22  True",
    ]
