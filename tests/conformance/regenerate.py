"""`python -m tests.conformance.regenerate`: runs every case, prints totals per operator, and writes `expected.json`.

It refuses to write when a case fails: a failure is never an expectation. Review the difference before it is committed: a
case that moved from `pass` to `refused` is a loss.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypedDict

import onnx

from tests.conformance.cases import Outcome, collect, name_of, outcome

EXPECTED = Path(__file__).with_name("expected.json")


class Expectation(TypedDict):
    """What is expected of one operator's cases."""

    passed: list[str]
    refused: dict[str, str]
    """Case -> why."""


def load() -> tuple[str, dict[str, Expectation]]:
    """The version of onnx that the expectations are for, and operator -> expectation, as committed."""
    stored = json.loads(EXPECTED.read_text())
    return stored["onnx"], stored["operators"]


def summarize(outcomes: dict[str, dict[str, Outcome]]) -> dict[str, Expectation]:
    """The expectation that `outcomes` (operator -> case -> outcome) meet."""
    return {
        operator: {
            "passed": sorted(n for n, o in cases.items() if o.status == "pass"),
            "refused": {
                n: cases[n].detail.split(" (supported:")[0]
                for n in sorted(cases)
                if cases[n].status == "refused"
            },
        }
        for operator, cases in sorted(outcomes.items())
    }


def main() -> int:
    outcomes = {
        operator: {name_of(case): outcome(case) for case in cases}
        for operator, cases in collect().items()
    }
    failures = [
        f"{name}: {found.detail}"
        for cases in outcomes.values()
        for name, found in cases.items()
        if found.status == "fail"
    ]
    summary = summarize(outcomes)
    for operator, expectation in summary.items():
        print(
            f"{operator:24} {len(expectation['passed']):4} pass {len(expectation['refused']):4} refused"
        )
    passed = sum(len(e["passed"]) for e in summary.values())
    refused = sum(len(e["refused"]) for e in summary.values())
    print(f"{'total':24} {passed:4} pass {refused:4} refused {len(failures):4} fail")
    if failures:
        print("\n".join(failures), file=sys.stderr)
        return 1
    stored = {"onnx": onnx.__version__, "operators": summary}
    EXPECTED.write_text(json.dumps(stored, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
