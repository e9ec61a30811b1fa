"""What a project for a cluster has besides generated code: files of the runtime, and a `Makefile` that links them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import PurePosixPath
from textwrap import dedent, fill

from qfold.backend.cross import CrossCompiler
from qfold.runtime import port_sources
from qfold.targets import Target

LINKER_SCRIPT = "link.ld"


def runtime_files(port: str) -> tuple[str, ...]:
    """The runtime's sources and headers for a port, as paths in `qfold.runtime` and in the project."""
    sources = port_sources(port)
    directories = dict.fromkeys(
        str(parent) for name in sources for parent in PurePosixPath(name).parents
    )
    headers: list[str] = []
    for directory in sorted(directories):
        for entry in resources.files("qfold.runtime").joinpath(directory).iterdir():
            if entry.name.endswith(".h"):
                headers.append(str(PurePosixPath(directory) / entry.name))
    return (*sorted(headers), *sources)


def print_cluster_makefile(target: Target, generated: Sequence[str]) -> str:
    """`Makefile`: links `generated`, the names of generated files, with the runner and the port of the runtime."""
    text = dedent(
        """\
        # Builds `runner`, which runs the network on files@WHERE@ (runner.c says how): runner INPUTS OUTPUTS REPEAT
        # CC, MACHINE, CFLAGS and LDFLAGS may be set on the command line@HINT@
        CC = @CC@
        MACHINE = @MACHINE@
        # -ffp-contract=off: a * b + c rounds twice on every machine, so results do not depend on the compiler.
        CFLAGS = @FLAGS@
        # What the target is: cores, bytes of L1 for tiles@STACK@.
        TARGET = @DEFINES@
        LDFLAGS = @LINK@
        OBJECTS = @OBJECTS@

        runner: $(OBJECTS)@SCRIPT@
        \t$(CC) $(MACHINE) @LINK_CFLAGS@-o $@ $(OBJECTS) $(LDFLAGS)

        %.c.o: %.c
        \t$(CC) $(CFLAGS) $(TARGET) $(MACHINE) -I. -c -o $@ $<

        %.S.o: %.S
        \t$(CC) $(CFLAGS) $(TARGET) $(MACHINE) -I. -c -o $@ $<

        $(OBJECTS): @HEADERS@
        weights.S.o: weights.bin

        clean:
        \trm -f runner $(OBJECTS)

        .PHONY: clean
        """
    )
    own = [n for n in generated if n.endswith((".c", ".S"))]
    files = runtime_files(target.port)
    sources = [*own, *(n for n in files if n.endswith((".c", ".S")))]
    headers = [n for n in (*generated, *files) if n.endswith(".h")]
    defines = [f"-DQF_CORES={target.cores}", f"-DQF_L1_BYTES={target.scratchpad_bytes}"]
    bare = target.isa is not None
    if bare and target.stack_bytes:
        defines.append(f"-DQF_STACK_BYTES={target.stack_bytes}")
    script = LINKER_SCRIPT if LINKER_SCRIPT in generated else None
    compiler, machine, link = "cc", ["-march=native"], list(target.toolchain.libraries)
    hint, where = ":\n#   make CC=clang MACHINE=-march=x86-64-v3", ""
    if target.isa is not None:
        clang = CrossCompiler(("clang",), "clang")
        zig = CrossCompiler(("zig", "cc"), "zig")
        compiler, machine = "clang", clang.machine_flags(target.isa)
        link = [
            *(f for f in clang.link_flags(None)),
            *(("-T", script) if script is not None else ()),
        ]
        flags = " ".join(zig.machine_flags(target.isa))
        hint = f":\n#   make CC='python -m ziglang cc' MACHINE='{flags}'"
        where = f" in {target.port}; `qfold run` does both"
    values = {
        "HINT": hint,
        "WHERE": where,
        "CC": compiler,
        "MACHINE": " ".join(machine),
        "FLAGS": " ".join(target.toolchain.flags),
        "STACK": ", bytes of a core's stack" if len(defines) > 2 else "",
        "DEFINES": " ".join(defines),
        "LINK": " ".join(link),
        "OBJECTS": _listed([f"{n}.o" for n in sources]),
        "SCRIPT": "" if script is None else f" {script}",
        # A sanitizer is a flag of linking too, where there is one.
        "LINK_CFLAGS": "" if bare else "$(CFLAGS) ",
        "HEADERS": _listed(headers),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _listed(names: Sequence[str]) -> str:
    """Names on lines of a Makefile."""
    return fill(
        " ".join(names),
        110,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    ).replace("\n", " \\\n")
