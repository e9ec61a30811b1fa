"""`qf_share`: equal parts, in order, each element in exactly one."""

from __future__ import annotations

import ctypes
import itertools

import pytest

from tests.runtime.compiling import compile_shared

SOURCE = """
#include "qfold_rt.h"
void share(ptrdiff_t n, uint32_t part, uint32_t parts, ptrdiff_t *first, ptrdiff_t *last);
void share(ptrdiff_t n, uint32_t part, uint32_t parts, ptrdiff_t *first, ptrdiff_t *last) {
    qf_share(n, part, parts, first, last);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_shared(
        tmp_path_factory.mktemp("share"),
        SOURCE,
        ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"],
    )


def share(library: ctypes.CDLL, n: int, part: int, parts: int) -> range:
    first, last = ctypes.c_ssize_t(), ctypes.c_ssize_t()
    library.share(ctypes.c_ssize_t(n), part, parts, ctypes.byref(first), ctypes.byref(last))
    return range(first.value, last.value)


@pytest.mark.parametrize("parts", range(1, 17))
def test_parts_cover_exactly(library: ctypes.CDLL, parts: int) -> None:
    for n in (*range(70), 1000, 2**31 - 1):
        ranges = [share(library, n, part, parts) for part in range(parts)]
        assert ranges[0].start == 0 and ranges[-1].stop == n
        assert all(a.stop == b.start for a, b in itertools.pairwise(ranges))
        sizes = [len(r) for r in ranges]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


def test_parts_that_do_not_exist_are_empty(library: ctypes.CDLL) -> None:
    for n in (0, 1, 5, 100):
        for part in (3, 4, 15, 2**31):
            assert share(library, n, part, 3) == range(n, n)
