"""The gate of a refactoring: hashes of every step from a traced graph to rendered text.

`stages` hashes the results of one graph, `targets` lists the targets and renderers, and `sources`
defines a case. `models`, `packed`, `nets`, `imports` and `checks` list the cases from the tables of
weft.conform and of the tests. `run` computes the hashes and `compare` reports the changes.
"""
