"""`weft.linalg`, so that it can be imported by its public name: weft.tensor.linalg."""

import sys

from weft.tensor import linalg
from weft.tensor.linalg import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = linalg
