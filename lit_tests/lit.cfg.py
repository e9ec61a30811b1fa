"""lit's configuration: which tools the RUN lines see.

`qfold-opt` and `qfold` in a RUN line are the modules of this tree, run by the Python that runs lit.
`filecheck`, `xdsl-opt` and the like come from the same environment's bin directory. Feature `mlir-opt`:
upstream's tool was found (in its wheel's directory, on PATH, or where Debian puts it), so that a test
can say `REQUIRES: mlir-opt`.
"""

# pyright: basic, reportUndefinedVariable=false
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import lit.formats

config = config  # noqa: F821 - lit defines it
root = Path(__file__).resolve().parent.parent

config.name = "qfold"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.excludes = ["Output", "Inputs"]
config.test_source_root = str(root / "lit_tests")

tools = [
    Path(sys.executable).parent,
    Path(sysconfig.get_path("purelib")) / "mlir" / "bin",
    *(Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p),
    *sorted(Path("/usr/lib").glob("llvm-*/bin"), reverse=True),
]
path = os.pathsep.join(str(p) for p in tools if p.is_dir())
config.environment["PATH"] = path
config.environment["PYTHONPATH"] = str(root / "src")
config.environment["PYTHONDONTWRITEBYTECODE"] = os.environ.get("PYTHONDONTWRITEBYTECODE", "")

# A whole word that is not part of a path or of a longer name.
word = r"(?<![\w./-]){}(?![\w./-])"
config.substitutions += [
    (word.format("qfold-opt"), f"{sys.executable} -m qfold.tools.qfold_opt"),
    (word.format("qfold"), f"{sys.executable} -m qfold.tools.qfold"),
]

if shutil.which("mlir-opt", path=path):
    config.available_features.add("mlir-opt")
