"""A compiler of somebody else's that embeds qfold: a dialect, a pattern and a kernel of its own, and qfold's passes.

docs/embedding.md walks through it. It imports qfold as any other package would, and changes nothing in it.
"""

from tests.embedding.minicompiler.compiler import compile_text

__all__ = ["compile_text"]
