"""One way from a model to kernels, for all commands, for tests, benchmarks and embedders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects import get_all_dialects as get_xdsl_dialects
from xdsl.dialects.builtin import IntegerType, ModuleOp
from xdsl.passes import ModulePass

from qfold.backend.c.emit import emit
from qfold.backend.c.generated import generate_kernels
from qfold.dialects import get_all_dialects
from qfold.frontend import LoadedModel, default_inputs, import_loaded, load_model
from qfold.frontend.graph import display_name
from qfold.frontend.registry import canonical_domain
from qfold.tools.arrays import Array, TensorSpec, input_specs, output_specs
from qfold.tools.flow import OnnxNode
from qfold.tools.interface import Layout, change_interface, handed_over
from qfold.tools.manifest import program_of
from qfold.tools.report import Report, ReportInputs, build_report
from qfold.tools.tensor_facts import (
    TensorFacts,
    integer_products,
    quantized_weights,
    tensor_facts,
)
from qfold.transforms.pipelines import kernel_pipeline, run_passes, tensor_pipeline

REPORT_FILE = "report.json"


@dataclass(frozen=True)
class Options:
    """What to compile for, and how."""

    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    """Lengths of dynamic dimensions."""
    fuse: bool = True
    """Dequantise inside of contractions and gathers; else in a pass of its own, into a float copy in memory."""
    hoist: bool = True
    """Take zero points out of the loops."""
    dynamic_activations: bool = False
    """Quantise the activations of quantised weights at run time: an approximation."""
    quantized_io: bool = False
    """Inputs that are quantised first thing, and outputs that are dequantised last thing, are integers."""
    input_layouts: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    """Input name -> how it is laid out; under "" that of all others. Without: as the model has them."""
    target: str = "host"
    freeze_initializers: bool = False
    """Initializers that are also graph inputs are constants."""
    input_types: Mapping[str, IntegerType] = field(default_factory=dict[str, IntegerType])
    """What float inputs hold that the model's format does not declare: input name -> i8 or ui8."""
    verify_each: bool = False
    """Run the verifiers after each pass and not only where a level ends."""


@dataclass(frozen=True)
class Compilation:
    """A compiled model."""

    model: str
    options: Options
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    defaults: Mapping[str, Array]
    """Values of inputs that have one."""
    facts: TensorFacts
    kernels: ModuleOp
    """At the kernel level, planned."""
    report: Report


def make_context() -> Context:
    """A context in which every dialect of xDSL and qfold is registered, none of them loaded."""
    context = Context()
    for name, factory in (get_xdsl_dialects() | get_all_dialects()).items():
        context.register_dialect(name, factory)
    return context


def import_tensor_module(model: LoadedModel, options: Options) -> ModuleOp:
    """The model at the tensor level, as the frontend makes it, with the inputs and outputs that are asked for."""
    module = import_loaded(
        model,
        options.dims,
        freeze_initializers=options.freeze_initializers,
        input_types=options.input_types,
    )
    change_interface(
        module,
        make_context(),
        quantized_io=options.quantized_io,
        layouts=options.input_layouts,
    )
    module.verify()
    return module


def model_nodes(model: LoadedModel) -> list[OnnxNode]:
    """The nodes of the model's graph, in its order, by the names that locations have."""
    return [
        OnnxNode(
            display_name(node, index),
            node.op_type,
            canonical_domain(node.domain),
            tuple(node.input),
            tuple(node.output),
        )
        for index, node in enumerate(model.proto.graph.node)
    ]


def lower(
    module: ModuleOp,
    options: Options,
    context: Context | None = None,
    on_pass: Callable[[str, float], None] | None = None,
) -> TensorFacts:
    """Takes a tensor-level module to the kernel level, in place. `on_pass` hears of each pass and its seconds."""
    context = context or make_context()
    passes = list(
        tensor_pipeline(
            options.target,
            fuse=options.fuse,
            hoist=options.hoist,
            dynamic_activations=options.dynamic_activations,
        )
    )
    names = [p.name for p in passes]
    fuse, lower_ = names.index("qmm-canonicalize") + 1, names.index("qmm-lower-quantization")

    def run(steps: Iterable[ModulePass]) -> None:
        run_passes(context, module, steps, verify_each=options.verify_each, on_pass=on_pass)

    run(passes[:fuse])
    quantized = list(quantized_weights(module))
    run(passes[fuse:lower_])
    facts = tensor_facts(module, quantized)
    run(passes[lower_:])
    facts = replace(facts, products=integer_products(module))
    run(kernel_pipeline(options.target))
    return facts


def approximate(module: ModuleOp, options: Options) -> None:
    """Rewrites a tensor-level module, in place, to the network that a build with `dynamic_activations` computes: what its outputs
    are compared with."""
    passes = tensor_pipeline(options.target, fuse=options.fuse, dynamic_activations=True)
    last = [p.name for p in passes].index("qmm-dynamic-activations")
    run_passes(make_context(), module, passes[: last + 1])
    module.verify()


def compile_loaded(
    model: LoadedModel,
    options: Options | None = None,
    on_pass: Callable[[str, float], None] | None = None,
) -> Compilation:
    """Compiles a model that was loaded before."""
    options = options or Options()
    module = import_tensor_module(model, options)
    inputs, outputs = input_specs(module), output_specs(module)
    facts = lower(module, options, on_pass=on_pass)
    name = Path(model.name).name
    report = build_report(
        ReportInputs(
            model=name,
            nodes=model_nodes(model),
            dims=options.dims,
            options={
                "fuse": options.fuse,
                "hoist": options.hoist,
                "dynamic_activations": options.dynamic_activations,
                "quantized_io": options.quantized_io,
            },
            target=options.target,
            inputs=inputs,
            outputs=outputs,
            facts=facts,
            kernels=module,
            generated=generate_kernels(program_of(module)),
        )
    )
    known = {s.name: s for s in inputs}
    defaults = {n: handed_over(a, known[n]) for n, a in default_inputs(model).items() if n in known}
    return Compilation(
        name, options, tuple(inputs), tuple(outputs), defaults, facts, module, report
    )


def compile_model(
    source: Path | str | bytes,
    options: Options | None = None,
    on_pass: Callable[[str, float], None] | None = None,
) -> Compilation:
    """Compiles an ONNX model: a path, or the bytes of a file. `FrontendError` and the passes' errors say what cannot be done."""
    return compile_loaded(load_model(source), options, on_pass)


def report_text(report: Report) -> str:
    """What `report.json` holds: the same bytes for the same report."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


def project_files(compilation: Compilation) -> dict[str, bytes]:
    """The C project and `report.json`: file name -> contents."""
    return emit(compilation.kernels) | {REPORT_FILE: report_text(compilation.report).encode()}
