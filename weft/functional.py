"""`weft.functional`, so that it can be imported by its public name: weft.tensor.functional."""

import sys

from weft.tensor import functional
from weft.tensor.functional import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = functional
