"""Plays one part of one client against a server: run.py CLIENT PART URL, in an environment with
the client. Exit status 0 if all it asserts holds."""

from __future__ import annotations

import importlib
import sys

client, part, url = sys.argv[1:]
getattr(importlib.import_module(client), part)(url)
