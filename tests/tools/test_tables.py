"""Tables in narrow terminals: columns are left out before names are cut, and in no file."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from qfold.tools.tables import FittedTable

SYMBOL = "quant_conv_ui8_i8_1x64x20x5_64x64x1x1_to_ui8"


def shown(width: int, *, terminal: bool, caption: str | None = None) -> list[str]:
    table = FittedTable("Calls", ("operands", "unknown", "bytes"))
    for name in ("function", "operands", "bytes", "MACs"):
        right = name in ("bytes", "MACs")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    table.add_row(Text(SYMBOL), "x: 1x64x20x5xui8, w: 64x64x1x1xi8", "6,400", "409,600")
    table.caption = caption
    stream = StringIO()
    Console(file=stream, width=width, force_terminal=terminal, color_system=None).print(table)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "headers", "left_out"),
    [
        (120, "function operands bytes MACs", ""),
        (80, "function bytes MACs", "operands"),
        (60, "function MACs", "operands, bytes"),
    ],
)
def test_columns_are_left_out_in_order(width: int, headers: str, left_out: str) -> None:
    lines = shown(width, terminal=True)
    assert max(map(len, lines)) <= width
    assert lines[2].replace("┃", " ").split() == headers.split()
    assert sum(SYMBOL in line for line in lines) == 1
    note = f"not shown, for want of room: {left_out}"
    assert [line.strip() for line in lines if "not shown" in line] == ([note] if left_out else [])


def test_what_does_not_fit_at_all_is_folded() -> None:
    lines = shown(40, terminal=True)
    assert max(map(len, lines)) <= 40
    assert any("409,600" in line for line in lines)
    cells = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert cells == SYMBOL


def test_a_caption_stays() -> None:
    lines = shown(80, terminal=True, caption="and 3 more")
    assert lines[-1].strip() == "and 3 more; not shown, for want of room: operands"


def test_a_file_has_all_columns() -> None:
    lines = shown(80, terminal=False)
    assert lines[2].replace("┃", " ").split() == ["function", "operands", "bytes", "MACs"]
    assert not any("not shown" in line for line in lines)
