"""A fixed part of the fuzzing, small enough for every run; `python -m tests.fuzz.run` goes on from here."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from qfold.frontend import FrontendError, import_model
from tests.fuzz.check import Finding, Refused, check_compiled, check_levels, check_sanitized
from tests.fuzz.graphs import Case, Value, value_info
from tests.fuzz.mutate import mutate_bytes, mutate_model
from tests.fuzz.operators import make_case
from tests.fuzz.run import OK, options, outcome, save
from tests.fuzz.shrink import shrink

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LEVELS = 300
REFUSALS_ALLOWED = LEVELS // 50
"""The generator makes what is supported, but for some operators on some types."""

NAMED = (
    "MatMul Gemm Conv MaxPool AveragePool GlobalAveragePool Softmax LogSoftmax LayerNormalization BatchNormalization Gelu Erf "
    "Tanh Sigmoid Relu LeakyRelu Clip HardSwish Add Sub Mul Div Equal Greater Less And Or Not IsNaN Where Min Max Cast "
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare "
    "Reshape Flatten Transpose Squeeze Unsqueeze Expand Concat Split Slice Gather GatherND Pad QuantizeLinear DequantizeLinear "
    "Dequant"
).split()


def test_every_level_computes_the_same() -> None:
    made: Counter[str] = Counter()
    refused: list[str] = []
    for seed in range(LEVELS):
        case = make_case(seed)
        made.update(case.operators)
        try:
            check_levels(case, **options(seed), verify_each=seed % 10 == 0)
        except Refused as error:
            refused.append(str(error))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert len(refused) <= REFUSALS_ALLOWED, "\n".join(refused)
    assert not [op for op in NAMED if not made[op]]


def test_compiled_graphs_verify() -> None:
    check_compiled(make_case(1, graphs=20))


def sanitizers() -> bool:
    compiler = shutil.which("cc")
    if compiler is None:
        return False
    command = [compiler, "-fsanitize=address,undefined", "-x", "c", "-", "-o", "/dev/null"]
    return not subprocess.run(
        command, input=b"int main(void){return 0;}", capture_output=True
    ).returncode


@pytest.mark.skipif(not sanitizers(), reason="the C compiler has no sanitizers")
def test_compiled_graphs_touch_only_what_is_theirs() -> None:
    check_sanitized(make_case(2, graphs=20))


def test_damaged_models_are_refused_in_a_sentence() -> None:
    refused = 0
    for seed in range(25):
        case, random = make_case(seed), Random(seed)
        data = case.model.SerializeToString()
        for turn in range(8):
            damaged = (
                mutate_bytes(data, random) if turn % 3 == 0 else mutate_model(case.model, random)
            )
            try:
                import_model(damaged).verify()
            except FrontendError as error:
                refused += 1
                assert str(error).strip()
            except Exception as error:
                error.add_note(f"seed {seed}, turn {turn}")
                raise
    assert refused > 100


def test_cases_are_the_same_each_time() -> None:
    a, b = make_case(5), make_case(5)
    assert a.model.SerializeToString() == b.model.SerializeToString()
    assert a.model != make_case(6).model


def _with_wrong_expectation(case: Case) -> tuple[Case, str]:
    """The case with one element of one float output of a Gemm or MatMul expected elsewhere."""
    for node in case.model.graph.node:
        if node.op_type in ("MatMul", "Gemm") and case.values[node.output[0]].size:
            name = node.output[0]
            values = dict(case.values)
            values[name] = np.array(values[name])
            values[name].reshape(-1)[-1] += 0.5
            model = type(case.model)()
            model.CopyFrom(case.model)
            if name not in {o.name for o in model.graph.output}:
                model.graph.output.append(value_info(Value(name, values[name])))
            return Case(model, case.feeds, values, case.label), name
    raise AssertionError("no contraction")


def test_a_wrong_result_is_found_and_shrunk() -> None:
    seed = next(s for s in range(50) if {"MatMul", "Gemm"} & set(make_case(s).operators))
    case, name = _with_wrong_expectation(make_case(seed))
    with pytest.raises(Finding, match=name):
        check_levels(case)
    kind, _ = outcome(case, "levels", seed, 60)
    small = shrink(case, lambda c: outcome(c, "levels", seed, 60)[0] == kind)
    assert kind == "finding: reference"
    assert [o.name for o in small.model.graph.output] == [name]
    assert len(small.operators) == 1


def test_a_failing_model_is_saved(tmp_path: Path) -> None:
    case = make_case(3)
    path = save(case, tmp_path, "case")
    again = import_model(path)
    again.verify()
    assert outcome(case, "levels", 3, 60)[0] == OK
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "case.onnx",
        "case_inputs.npz",
        "case_outputs.npz",
    ]
