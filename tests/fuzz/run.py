"""The long run: `python -m tests.fuzz.run --of quantized --count 1000 --seed 0 --stage levels|compiled|sanitized|damaged`.

Prints what came out how often, with the seeds. A failing model is shrunk and saved beside its inputs.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import onnx

from qfold.tools.errors import user_sentence
from tests.fuzz import operators, quantized
from tests.fuzz.check import (
    Finding,
    Refused,
    check_compiled,
    check_damaged,
    check_levels,
    check_sanitized,
)
from tests.fuzz.graphs import Case
from tests.fuzz.shrink import shrink

STAGES: dict[str, Callable[..., None]] = {
    "levels": check_levels,
    "compiled": check_compiled,
    "sanitized": check_sanitized,
    "damaged": check_damaged,
}
KINDS: dict[str, Callable[[int, int], Case]] = {
    "floats": operators.make_case,
    "quantized": quantized.make_case,
}
"""What graphs are of: any operators and weight-only quantisation, or integers between layers."""
OK, REFUSED = "ok", "refused"


class TookTooLong(Exception):
    """A case did not end in the time that it had."""


def options(seed: int) -> dict[str, bool]:
    """Most cases are fused and hoisted, some are not."""
    return {"fuse": seed % 7 != 3, "hoist": seed % 5 != 2}


def outcome(
    case: Case, stage: str, seed: int, seconds: int, *, target: str = "host"
) -> tuple[str, str]:
    """(`ok`, `refused`, or what went wrong and where; the message)."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        if stage == "damaged":
            check_damaged(case, seed)
        elif stage == "levels":
            # Verifying after each pass takes most of the time.
            check_levels(case, **options(seed), verify_each=seed % 10 == 0)
        elif stage == "compiled":
            check_compiled(case, **options(seed), target=target)
        else:
            STAGES[stage](case, **options(seed))
    except Refused as error:
        return REFUSED, str(error)
    except Finding as error:
        return f"finding: {error.kind}", str(error)
    except TookTooLong as error:
        return "hang", str(error)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        sort = "refused late" if user_sentence(error) else "crash"
        where = f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}"
        return f"{sort}: {where}", str(error)[-800:]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return OK, ""


def save(case: Case, directory: Path, stem: str) -> Path:
    """The model, its inputs and the expected outputs."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}.onnx"
    onnx.save(case.model, path)
    np.savez(directory / f"{stem}_inputs.npz", **case.feeds)  # type: ignore[arg-type]
    np.savez(directory / f"{stem}_outputs.npz", **case.expected())  # type: ignore[arg-type]
    return path


def reasons(text: str) -> list[str]:
    """The refusals of an error, without names and numbers."""
    lines = [line.strip(" -") for line in text.splitlines()]
    return [re.sub(r"\d+", "N", line)[:160] for line in (lines[1:] or lines)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--graphs", type=int, default=1, help="graphs side by side in each case")
    parser.add_argument("--of", choices=list(KINDS), default="floats", help="what graphs are of")
    parser.add_argument("--target", default="host", help="of the stage `compiled`")
    parser.add_argument("--stage", choices=list(STAGES), default="levels")
    parser.add_argument("--seconds", type=int, default=60, help="limit for one case")
    parser.add_argument("--save", type=Path, default=Path("fuzz-failures"), metavar="DIR")
    parser.add_argument("--no-shrink", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)

    totals: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    seen: set[str] = set()
    print(f"seeds {arguments.seed} to {arguments.seed + arguments.count - 1}, {arguments.stage}")
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        case = KINDS[arguments.of](seed, arguments.graphs)
        result, text = outcome(
            case, arguments.stage, seed, arguments.seconds, target=arguments.target
        )
        totals[result] += 1
        if result == REFUSED:
            refusals.update(reasons(text))
        if result in (OK, REFUSED):
            continue
        print(f"seed {seed}: {result}\n  {text[:600]}")
        if result in seen:
            continue  # one model for each kind is enough
        seen.add(result)
        if not arguments.no_shrink:
            small = shrink(
                case,
                lambda c, s=seed, r=result: (
                    outcome(c, arguments.stage, s, arguments.seconds, target=arguments.target)[0]
                    == r
                ),  # type: ignore[misc]
            )
            case = small
        print(f"  saved {save(case, arguments.save, f'seed{seed}')}: {len(case.operators)} nodes")
    print("; ".join(f"{n} {what}" for what, n in totals.most_common()))
    for reason, n in refusals.most_common():
        print(f"  {n} × {reason}")
    return 0 if set(totals) <= {OK, REFUSED} else 1


if __name__ == "__main__":
    sys.exit(main())
