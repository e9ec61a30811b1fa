"""The compiler: text in, a kernel-level module out."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import get_all_dialects as get_xdsl_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from qfold.dialects import get_all_dialects
from qfold.transforms.pipelines import run_passes, tensor_pipeline
from qfold.transforms.qmm_bufferize import QmmBufferizePass
from qfold.transforms.qmm_outline_kernels import QmmOutlineKernelsPass
from qfold.transforms.qmm_plan_memory import QmmPlanMemoryPass
from qfold.transforms.qmm_select_kernels import select_kernels
from tests.embedding.minicompiler.dialect import MINI
from tests.embedding.minicompiler.kernel import TARGET
from tests.embedding.minicompiler.lowering import LowerMiniPass


def compile_text(text: str) -> ModuleOp:
    context = Context()
    for name, dialect in (get_xdsl_dialects() | get_all_dialects()).items():
        context.register_dialect(name, dialect)
    context.load_dialect(MINI)
    module = Parser(context, text).parse_module()
    run_passes(context, module, (LowerMiniPass(), *tensor_pipeline()), verify_each=True)
    run_passes(context, module, (QmmBufferizePass(), QmmOutlineKernelsPass()))
    select_kernels(module, TARGET)
    run_passes(context, module, (QmmPlanMemoryPass(),))
    return module
