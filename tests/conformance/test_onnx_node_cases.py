"""ONNX's own node cases for every operator that is imported: each passes, or is refused by name.

`expected.json` lists both per operator, so that a case which turns from one to the other fails here. It is made for one
version of onnx; with another, cases that it does not list have to pass or be refused all the same.
"""

from __future__ import annotations

import onnx
import pytest

from tests.conformance.cases import OPERATORS, Outcome, collect, name_of, outcome
from tests.conformance.regenerate import load

VERSION, EXPECTED = load()
for_this_version = pytest.mark.skipif(
    onnx.__version__ != VERSION, reason=f"expected.json is for onnx {VERSION}"
)


def outcomes_of(operator: str) -> dict[str, Outcome]:
    """Case -> outcome, for all cases of one operator."""
    return {name_of(case): outcome(case) for case in collect()[operator]}


@for_this_version
def test_every_operator_has_cases() -> None:
    assert {operator for operator, cases in collect().items() if not cases} == set()
    assert set(EXPECTED) == set(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS)
def test_cases(operator: str) -> None:
    found = outcomes_of(operator)
    failed = {name: o.detail for name, o in found.items() if o.status == "fail"}
    assert failed == {}
    expected = EXPECTED[operator]
    passed = {name for name, o in found.items() if o.status == "pass"}
    refused = {name for name, o in found.items() if o.status == "refused"}
    known = {*expected["passed"], *expected["refused"]}
    assert passed & known == set(expected["passed"]) & set(found)
    assert refused & known == set(expected["refused"]) & set(found)
    unnamed = {
        name: found[name].detail
        for name in refused
        if not any(
            word in found[name].detail
            for word in (
                "node '",
                "graph input '",
                "graph output '",
                "tensor '",
                "opset ",
                "the case is on ",
            )
        )
    }
    assert unnamed == {}, "refusals that do not say what of the model is refused"


@for_this_version
def test_totals(capsys: pytest.CaptureFixture[str]) -> None:
    """No case is missing from the expectations; prints the sums over all operators."""
    passed = sum(len(e["passed"]) for e in EXPECTED.values())
    refused = sum(len(e["refused"]) for e in EXPECTED.values())
    with capsys.disabled():
        print(f"\nONNX node cases: {passed} pass, {refused} refused by name", end=" ")
    assert sum(len(cases) for cases in collect().values()) == passed + refused
