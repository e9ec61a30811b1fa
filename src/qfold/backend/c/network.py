"""`network.c` (orchestration: one call per dispatch) and `network_trace.h` (what the checked build adds)."""

from __future__ import annotations

from qfold.backend.c.header import arena_accessor
from qfold.backend.c.kernels import parameters
from qfold.backend.c.layout import span_bytes
from qfold.backend.c.program import Arena, Dispatch, Place, Program, WeightData
from qfold.backend.c.text import Writer, comment_text


def argument_text(place: Place) -> str:
    """The C expression for one operand of a call: a member of in or out, or an accessor; no cast."""
    root = place.root
    if isinstance(root, Arena):
        return f"{arena_accessor(place)}(net)"
    if isinstance(root, WeightData):
        base = f"net_{root.symbol}(net)"
    else:
        base = f"{'out' if place.is_output else 'in'}->{root.member}"
    step = _c_elements(place)
    return f"{base} + {step}" if step else base


def _c_elements(place: Place) -> int:
    """The offset in elements of the C type: a byte holds two four-bit integers."""
    return place.bytes if _is_nibbles(place) else place.offset


def _is_nibbles(place: Place) -> bool:
    return str(place.type.get_element_type()) in ("i4", "ui4")


def print_network(program: Program) -> str:
    """`network.c`."""
    out = Writer()
    out.comment("The network: which kernel runs on what, in order. No computation, no cast.")
    out.lines(['#include "network.h"', "", '#include "kernels.h"', '#include "network_buffers.h"'])
    out.lines(["", "#ifdef QFOLD_TRACE", '#include "network_trace.h"', "#endif", ""])
    out.comment("Whether p is a multiple of `alignment`, a power of two.")
    with out.block("static int is_aligned(const void *p, uintptr_t alignment)"):
        out.line("return ((uintptr_t)p & (alignment - 1)) == 0;")
    out.line()
    _print_init(out, program)
    out.line()
    _print_run(out, program)
    return out.text()


def _print_init(out: Writer, program: Program) -> None:
    with out.block("int net_init(net_t *net, const net_mem_t *mem)"):
        with out.block("if (net == NULL || mem == NULL)"):
            out.line("return NET_ERR_NULL;")
        for arena in program.arenas:
            level = arena.level
            if arena.size:
                with out.block(f"if (mem->{level} == NULL)"):
                    out.line("return NET_ERR_NULL;")
            with out.block(f"if (!is_aligned(mem->{level}, NET_{level.upper()}_ALIGN))"):
                out.line("return NET_ERR_ALIGN;")
        out.line("#ifdef NET_WEIGHTS_IN_MEMORY")
        with out.block("if (mem->weights == NULL)"):
            out.line("return NET_ERR_NULL;")
        out.line("#endif")
        with out.block("if (!is_aligned(mem->weights, NET_WEIGHTS_ALIGN))"):
            out.line("return NET_ERR_ALIGN;")
        for arena in program.arenas:
            out.line(f"net->{arena.level} = mem->{arena.level};")
        out.line("net->weights = mem->weights;")
        out.line("return NET_OK;")


def _print_run(out: Writer, program: Program) -> None:
    with out.block("int net_run(net_t *net, const net_in_t *in, net_out_t *out)"):
        with out.block("if (net == NULL || in == NULL || out == NULL)"):
            out.line("return NET_ERR_NULL;")
        ports = [f"in->{p.member}" for p in program.inputs]
        ports += [f"out->{p.member}" for p in program.outputs]
        for port in ports:
            with out.block(f"if ({port} == NULL)"):
                out.line("return NET_ERR_NULL;")
        for dispatch in program.dispatches:
            out.line()
            nodes = ", ".join(comment_text(n) for n in dispatch.nodes) or "(no ONNX node)"
            out.comment(f"{dispatch.ordinal}: {nodes}")
            out.lines(_call(dispatch))
        out.line()
        out.line("return NET_OK;")


def _call(dispatch: Dispatch) -> list[str]:
    """The call, over several lines where one is too short."""
    arguments = [argument_text(p) for p in dispatch.operands]
    text = f"{dispatch.kernel.symbol}({', '.join(arguments)});"
    if len(text) <= 106:
        return [text]
    lines = [f"{dispatch.kernel.symbol}("]
    for i, argument in enumerate(arguments):
        end = "," if i + 1 < len(arguments) else ");"
        if len(lines) > 1 and len(lines[-1]) + len(argument) < 100:
            lines[-1] += f" {argument}{end}"
        else:
            lines.append(f"    {argument}{end}")
    return lines


def print_trace_header(program: Program) -> str:
    """`network_trace.h`: a macro around each kernel that reports operands before and after the call."""
    out = Writer()
    out.comment(
        "The checked build (-DQFOLD_TRACE): each kernel call reports the operands that it reads before it runs, and those that "
        "it writes after. A macro's own name is not expanded again, so the inner call is the kernel."
    )
    out.lines(["#ifndef NETWORK_TRACE_H", "#define NETWORK_TRACE_H", "", "#include <stddef.h>", ""])
    out.comment("Provided by whoever links the checked build, such as runner.c.")
    out.line("void qfold_trace_dispatch(const char *symbol);")
    out.line("void qfold_trace(int argument, int after, const void *data, size_t bytes);")
    for kernel in program.kernels:
        found = parameters(kernel)
        names = [f"a{i}" for i in range(len(found))]
        call = f"{kernel.symbol}({', '.join(names)})"
        steps = [f'qfold_trace_dispatch("{kernel.symbol}")']
        for after in (0, 1):
            for i, p in enumerate(found):
                if p.written if after else p.read:
                    size = span_bytes(p.buffer.type)
                    steps.append(f"qfold_trace({i}, {after}, (a{i}), {size}u)")
            if not after:
                steps.append(call)
        out.line()
        out.line(f"#define {call} \\")
        out.line("    (" + ", \\\n     ".join(steps) + ")")
    out.lines(["", "#endif"])
    return out.text()
