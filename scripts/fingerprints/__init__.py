"""The gate of a refactoring: hashes of every step from a traced graph to rendered text.

`stages` hashes what one graph becomes, `targets` says for what and by which renderers, `sources`
what a case is; `models`, `packed`, `nets`, `imports` and `checks` list the cases from the tables of
weft.conform and of the tests; `run` computes them and `compare` says what changed.
"""
