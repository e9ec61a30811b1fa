"""Writing C: indented lines, comments that stay comments, identifiers, literals."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from textwrap import wrap

import numpy as np

_WIDTH = 110


class Writer:
    """Lines of C with the current indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """One line; the empty one without trailing blanks, preprocessor lines at the margin."""
        margin = not text or text.startswith("#")
        self._lines.append(text if margin else "    " * self._depth + text)

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Generator[None]:
        """`head {` ... `}` with what is written inside one level deeper."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line(tail)

    @contextmanager
    def otherwise(self) -> Generator[None]:
        """`else { ... }`, right after a `block` that is an `if`."""
        closed = self._lines.pop()
        assert closed.strip() == "}", "else follows an if"
        with self.block("} else"):
            yield

    @contextmanager
    def loop(
        self, variable: str, extent: int | str, start: int | str = 0, step: int = 1
    ) -> Generator[None]:
        """`for (variable = start; variable < extent; variable += step)`."""
        advance = f"{variable}++" if step == 1 else f"{variable} += {step}"
        with self.block(f"for (ptrdiff_t {variable} = {start}; {variable} < {extent}; {advance})"):
            yield

    def comment(self, text: str) -> None:
        """A block comment, wrapped; whatever `text` holds, it cannot end the comment early."""
        width = _WIDTH - 4 * self._depth
        rows = [
            row for part in comment_text(text).split("\n") for row in wrap(part, width - 6) or [""]
        ]
        if len(rows) == 1:
            self.line(f"/* {rows[0]} */")
            return
        self.line(f"/* {rows[0]}")
        for row in rows[1:-1]:
            self.line(f" * {row}".rstrip())
        self.line(f" * {rows[-1]} */")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def call_lines(function: str, arguments: Sequence[str]) -> list[str]:
    """A call as a statement, over several lines where one is too short."""
    text = f"{function}({', '.join(arguments)});"
    if len(text) <= 106:
        return [text]
    lines = [f"{function}("]
    for i, argument in enumerate(arguments):
        end = "," if i + 1 < len(arguments) else ");"
        if len(lines) > 1 and len(lines[-1]) + len(argument) < 100:
            lines[-1] += f" {argument}{end}"
        else:
            lines.append(f"    {argument}{end}")
    return lines


def comment_text(text: str) -> str:
    """`text` as it may stand in a C comment: ASCII, no comment marks, no trigraphs, no line splices."""
    plain = "".join(c if c == "\n" or " " <= c <= "~" else "?" for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?").replace("\\", "/")


_RESERVED = frozenset(
    # C99, C11 and C++ keywords, and what the generated files include or define themselves
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const const_cast continue
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long
    main mutable namespace new not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
    restrict return short signed sizeof static static_assert static_cast struct switch template this thread_local throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq NULL in out net
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t ptrdiff_t""".split()
)


class Names:
    """C identifiers, each given out once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def unique(self, wanted: str) -> str:
        """`wanted` as an identifier that nobody has yet."""
        base = identifier(wanted)
        name, count = base, 2
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name


def identifier(text: str) -> str:
    """`text` with everything that C does not take in a name as `_`; never a keyword or a reserved name."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "v"
    if name[0].isdigit() or name in _RESERVED or name.startswith(("qf_", "QF_", "net_", "NET_")):
        name = f"x_{name}"
    return name


def string_literal(text: str) -> str:
    """A C string literal of the UTF-8 bytes of `text`."""
    parts = [
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()
    ]
    return '"' + "".join(parts) + '"'


def float_literal(value: float, *, double: bool = False) -> str:
    """The shortest decimal that reads back as the same f32 (or f64)."""
    if np.isnan(value):
        return "(double)QF_NAN" if double else "QF_NAN"
    if np.isinf(value):
        sign = "-" if value < 0 else ""
        return f"({sign}(double)QF_INF)" if double else f"({sign}QF_INF)" if sign else "QF_INF"
    number = np.float64(value) if double else np.float32(value)
    text = np.format_float_positional(number, unique=True, trim="0")
    if len(text) > 14:
        text = np.format_float_scientific(number, unique=True, trim="0")
    text += "" if double else "f"
    return f"({text})" if text.startswith("-") else text


def integer_literal(value: int, width: int) -> str:
    """A signed integer constant of `width` bits."""
    if value == -(1 << (width - 1)) and width >= 32:
        return f"INT{width}_MIN"
    text = f"INT64_C({value})" if width == 64 and abs(value) > 0x7FFFFFFF else str(value)
    return f"({text})" if value < 0 else text


def is_postfix(text: str) -> bool:
    """Whether `text` is one call or one subscript, whose last bracket closes its first."""
    name = text[: min(text.find(c) % (len(text) + 1) for c in "([")]
    rest = text[len(name) :]
    return name.replace("_", "").isalnum() and _closes(rest)


def _closes(text: str) -> bool:
    """Whether the bracket that `text` starts with closes at its end, and not before."""
    depth = 0
    for position, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if depth == 0:
            return position == len(text) - 1
    return False


def without_parentheses(text: str) -> str:
    """An expression as the right side of an assignment."""
    return text[1:-1] if text.startswith("(") and _closes(text) else text
