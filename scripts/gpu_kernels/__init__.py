"""Kernels of every kind, judged without a GPU by what their compilers and their own text say."""
