"""`main.c` and `Makefile`: an example that compiles and runs what was generated."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent

from qfold.backend.c.header import shape_text
from qfold.backend.c.layout import c_type, stored_elements, value_type
from qfold.backend.c.program import Program
from qfold.backend.c.text import Writer
from qfold.dialects.element_types import bit_width, is_float

_SHOWN = 8


def print_main(program: Program) -> str:
    """`main.c`: inputs from files or zero, first elements of each output printed."""
    out = Writer()
    out.comment(
        "Example: runs the network once. `./network a.bin b.bin` reads one input after the other from files of raw elements in "
        "this machine's byte order; inputs without a file are zero."
    )
    out.lines(["#include <stdio.h>", "#include <stdlib.h>", "", '#include "network.h"', ""])
    with out.block("static void *aligned(size_t bytes, size_t alignment, void **block)"):
        out.line("*block = calloc(1, bytes + alignment);")
        out.line("if (*block == NULL) {")
        out.line('    fprintf(stderr, "out of memory\\n");')
        out.line("    exit(2);")
        out.line("}")
        out.line("return (char *)*block + (alignment - (uintptr_t)*block % alignment) % alignment;")
    out.line()
    with out.block("static void read_input(const char *path, void *data, size_t bytes)"):
        out.line('FILE *file = fopen(path, "rb");')
        out.line("if (file == NULL || fread(data, 1, bytes, file) != bytes) {")
        out.line('    fprintf(stderr, "%s: expected %zu bytes\\n", path, bytes);')
        out.line("    exit(2);")
        out.line("}")
        out.line("fclose(file);")
    out.line()
    for i, p in enumerate(program.inputs):
        type_ = c_type(p.type.get_element_type())
        out.line(
            f"static {type_} input_{i}[{max(1, stored_elements(p.type))}]; /* {p.member} {shape_text(p)} */"
        )
    for i, p in enumerate(program.outputs):
        type_ = c_type(p.type.get_element_type())
        out.line(
            f"static {type_} output_{i}[{max(1, stored_elements(p.type))}]; /* {p.member} {shape_text(p)} */"
        )
    out.line()
    with out.block("int main(int argc, char **argv)"):
        out.line("net_t net;")
        out.line("net_mem_t mem;")
        out.line("net_in_t in;")
        out.line("net_out_t out;")
        for arena in program.arenas:
            out.line(f"void *block_{arena.level};")
        out.line("int status;")
        out.line()
        for arena in program.arenas:
            level = arena.level
            macro = level.upper()
            out.line(
                f"mem.{level} = aligned(NET_{macro}_BYTES, NET_{macro}_ALIGN, &block_{level});"
            )
        out.line("mem.weights = NULL; /* linked in from weights.S */")
        out.line("status = net_init(&net, &mem);")
        with out.block("if (status != NET_OK)"):
            out.line('fprintf(stderr, "net_init: error %d\\n", status);')
            out.line("return 1;")
        out.line()
        for i, p in enumerate(program.inputs):
            with out.block(f"if (argc > {i + 1})"):
                out.line(f"read_input(argv[{i + 1}], input_{i}, NET_IN_{i}_BYTES);")
            out.line(f"in.{p.member} = input_{i};")
        if not program.inputs:
            out.lines(["(void)argc;", "(void)argv;", "(void)read_input;", "in.none = 0;"])
        for i, p in enumerate(program.outputs):
            out.line(f"out.{p.member} = output_{i};")
        out.line("status = net_run(&net, &in, &out);")
        with out.block("if (status != NET_OK)"):
            out.line('fprintf(stderr, "net_run: error %d\\n", status);')
            out.line("return 1;")
        for i, p in enumerate(program.outputs):
            out.line()
            _print_output(out, i, p.type.get_element_type(), p.type.get_shape())
        for arena in program.arenas:
            out.line(f"free(block_{arena.level});")
        out.line("return 0;")
    if not program.arenas:
        text = out.text()
        start = text.index("static void *aligned")
        end = text.index("static void read_input")
        return text[:start] + text[end:]
    return out.text()


def _print_output(out: Writer, index: int, element: object, shape: Sequence[int]) -> None:
    count = 1
    for extent in shape:
        count *= extent
    shown = min(count, _SHOWN)
    dims = "x".join(map(str, shape)) or "scalar"
    out.line(f'printf("%s ({dims}):", NET_OUT_{index}_NAME);')
    if shown:
        with out.loop("i", shown):
            if bit_width(element) == 4:  # pyright: ignore[reportArgumentType]
                out.line(f'printf(" 0x%x", (output_{index}[i / 2].nibbles >> (i % 2 * 4)) & 15);')
            elif is_float(element):  # pyright: ignore[reportArgumentType]
                out.line(f'printf(" %.9g", (double)output_{index}[i]);')
            elif value_type(element).startswith("u"):  # pyright: ignore[reportArgumentType]
                out.line(f'printf(" %llu", (unsigned long long)output_{index}[i]);')
            else:
                out.line(f'printf(" %lld", (long long)output_{index}[i]);')
    out.line(f'printf("{" ..." if shown < count else ""}\\n");')


def print_makefile(flags: Sequence[str]) -> str:
    """`Makefile`: the example, and the library that an application links."""
    text = dedent(
        """\
        # Builds the example `network` and the library `libnetwork.a`. CC, CFLAGS and MARCH may be set on the command line:
        #   make CC=clang MARCH=-march=x86-64-v3
        CC = cc
        AR = ar
        # -ffp-contract=off: a * b + c rounds twice on every machine, so results do not depend on the compiler. Fused
        # multiply-adds made no measurable difference to these loops (GCC 12, AVX-512).
        CFLAGS = @FLAGS@
        MARCH = -march=native
        OBJECTS = network.o kernels.o weights.o

        all: network libnetwork.a

        network: main.o $(OBJECTS)
        \t$(CC) $(CFLAGS) $(MARCH) $(LDFLAGS) -o $@ main.o $(OBJECTS)

        libnetwork.a: $(OBJECTS)
        \trm -f $@
        \t$(AR) rcs $@ $(OBJECTS)

        %.o: %.c
        \t$(CC) $(CFLAGS) $(MARCH) -c -o $@ $<

        main.o: network.h
        network.o: network.h network_buffers.h kernels.h qfold_int.h
        kernels.o: kernels.h qfold_int.h qfold_math.h
        weights.o: weights.S weights.bin
        \t$(CC) -c -o $@ weights.S

        run: network
        \t./network

        clean:
        \trm -f network libnetwork.a *.o

        .PHONY: all run clean
        """
    )
    return text.replace("@FLAGS@", " ".join(flags))
