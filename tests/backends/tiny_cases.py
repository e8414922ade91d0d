"""A tiny call of every public function: name -> maker(draw, function) -> (call, arrays).

`call` takes a tensor for each array and gives a tensor or several. PUBLIC lists what weft exports,
as it exports it; a name that is neither in CASES nor in HOST fails test_wgsl_tiny.py.
"""

import tiny_images
import tiny_losses
import tiny_movement
import tiny_networks
import tiny_numbers
from tiny_public import CASES, HOST, OWN, PUBLIC

# They fill CASES.
MAKERS = (tiny_numbers, tiny_movement, tiny_networks, tiny_losses, tiny_images)


def maker(name):
    """The maker of a public name, or None."""
    last = name.rpartition(".")[2]
    return CASES.get(name, CASES.get(last))


__all__ = ["CASES", "HOST", "MAKERS", "OWN", "PUBLIC", "maker"]
