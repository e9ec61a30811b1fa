"""`network.c` (orchestration: one call per dispatch) and `network_trace.h` (what the checked build adds)."""

from __future__ import annotations

from qfold.backend.c.header import arena_accessor
from qfold.backend.c.layout import span_bytes
from qfold.backend.c.program import Arena, Dispatch, Place, Port, Program, WeightData
from qfold.backend.c.signature import parameters
from qfold.backend.c.text import Writer, call_lines, comment_text


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
    if program.staged:
        out.line('#include "dispatches.h"')
    if program.is_cluster:
        out.line('#include "qfold_rt.h"')
    out.lines(["", "#ifdef QFOLD_TRACE", '#include "network_trace.h"', "#endif", ""])
    out.comment("Whether p is a multiple of `alignment`, a power of two.")
    with out.block("static int is_aligned(const void *p, uintptr_t alignment)"):
        out.line("return ((uintptr_t)p & (alignment - 1)) == 0;")
    out.line()
    _print_init(out, program)
    out.line()
    if program.is_cluster:
        _print_core(out, program)
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
        if program.is_cluster:
            out.line("run_t run;")
        with out.block("if (net == NULL || in == NULL || out == NULL)"):
            out.line("return NET_ERR_NULL;")
        ports = [f"in->{p.member}" for p in program.inputs]
        ports += [f"out->{p.member}" for p in program.outputs]
        for port in ports:
            with out.block(f"if ({port} == NULL)"):
                out.line("return NET_ERR_NULL;")
        if program.is_cluster:
            out.lines(f"run.{name} = {name};" for name in ("net", "in", "out"))
            out.line("qf_fork(run_on_core, &run);")
        else:
            for dispatch in program.dispatches:
                _print_dispatch(out, dispatch)
            out.line()
        out.line("return NET_OK;")


def _print_dispatch(out: Writer, dispatch: Dispatch) -> None:
    out.line()
    nodes = ", ".join(comment_text(n) for n in dispatch.nodes) or "(no ONNX node)"
    out.comment(f"{dispatch.ordinal}: {nodes}")
    out.lines(call_lines(dispatch.kernel.symbol, [argument_text(p) for p in dispatch.operands]))


def _print_core(out: Writer, program: Program) -> None:
    """What each core of a cluster does."""
    with out.block("typedef struct run", "} run_t;"):
        out.line("const net_t *net;")
        out.line("const net_in_t *in;")
        out.line("net_out_t *out;")
    out.line()
    out.comment("What a dispatch wrote is there for all cores when it returns.")
    with out.block("static void end_of_dispatch(uint32_t dispatch)"):
        out.line("#ifdef QFOLD_COUNT")
        out.line("qf_count(dispatch, qf_work_count());")
        out.line("#else")
        out.line("(void)dispatch;")
        out.line("#endif")
        out.line("qf_barrier();")
    out.line()
    out.comment("All cores run this; each does its share of every dispatch.")
    with out.block("static void run_on_core(void *arg)"):
        out.line("const run_t *run = arg;")
        used = {
            "out" if p.is_output else "in" if isinstance(p.root, Port) else "net"
            for d in program.dispatches
            for p in d.operands
        }
        for name, type_ in (("net", "const net_t"), ("in", "const net_in_t"), ("out", "net_out_t")):
            if name in used:
                out.line(f"{type_} *{name} = run->{name};")
        if not used:
            out.line("(void)run;")
        for dispatch in program.dispatches:
            _print_dispatch(out, dispatch)
            out.line(f"end_of_dispatch({dispatch.ordinal});")


_TRACE_ON_CORE_0 = """
/* Only core 0 reports. What it reads must not change meanwhile: see the barriers below. */
static inline void trace_dispatch_on_core_0(const char *symbol) {
    if (qf_core_id() == 0) {
        qfold_trace_dispatch(symbol);
    }
}

static inline void trace_on_core_0(int argument, int after, const void *data, size_t bytes) {
    if (qf_core_id() == 0) {
        qfold_trace(argument, after, data, bytes);
    }
}"""


def print_trace_header(program: Program) -> str:
    """`network_trace.h`: a macro around each kernel that reports operands before and after the call."""
    out = Writer()
    out.comment(
        "The checked build (-DQFOLD_TRACE): each kernel call reports the operands that it reads before it runs, and those that "
        "it writes after. A macro's own name is not expanded again, so the inner call is the kernel."
    )
    out.lines(["#ifndef NETWORK_TRACE_H", "#define NETWORK_TRACE_H", "", "#include <stddef.h>"])
    if program.is_cluster:
        out.lines(["", '#include "qfold_rt.h"'])
    out.line()
    out.comment("Provided by whoever links the checked build, such as runner.c.")
    out.line("void qfold_trace_dispatch(const char *symbol);")
    out.line("void qfold_trace(int argument, int after, const void *data, size_t bytes);")
    suffix = ""
    if program.is_cluster:
        out.lines(_TRACE_ON_CORE_0.split("\n"))
        suffix = "_on_core_0"
    called = {d.kernel.symbol: d.kernel for d in program.dispatches}
    for kernel in called.values():
        found = parameters(kernel)
        names = [f"a{i}" for i in range(len(found))]
        call = f"{kernel.symbol}({', '.join(names)})"
        prefix = f"trace{suffix}" if suffix else "qfold_trace"
        begin = f"trace_dispatch{suffix}" if suffix else "qfold_trace_dispatch"
        steps = [f'{begin}("{kernel.symbol}")']
        for after in (0, 1):
            for i, p in enumerate(found):
                if p.written if after else p.read:
                    size = span_bytes(p.buffer.type)
                    steps.append(f"{prefix}({i}, {after}, (a{i}), {size}u)")
            if not after:
                steps += ["qf_barrier()", call, "qf_barrier()"] if suffix else [call]
        out.line()
        out.line(f"#define {call} \\")
        out.line("    (" + ", \\\n     ".join(steps) + ")")
    out.lines(["", "#endif"])
    return out.text()
