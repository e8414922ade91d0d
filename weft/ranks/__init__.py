"""Several processes that share one work, on one machine or many: ranks, and typed arrays sent
between them.

    ranks = join()                          # SingleRank() unless a launcher of MPI started this
    ranks.watch()                           # heartbeats: a silent rank becomes a RankError
    ranks.send(array, to=1, tag=7)          # any dtype of weft's, up to 8 axes, C order
    rows = ranks.receive(0, tag=7, most=1 << 30)   # its shape and dtype come with it, checked
    sent = ranks.start_send(array, to=1)    # sent.wait() before the array is written again
    ranks.broadcast(array)                  # in place; the same shape and dtype everywhere
    ranks.gather(part, sizes) -> all parts, in the order of ranks, everywhere
    ranks.exchange(mine, sizes) -> the part of every rank for this one
    ranks.finish(); ranks.leave(status)     # together, or at once without the others

Every call takes `seconds`, a deadline (None: as long as every rank is heard of), and raises
RankError, after which the process can only `leave`. Libraries move bytes and weft adds: no call
here sums anything, so no result depends on the number of ranks. Messages are buffers of a fixed
binary form (frames.py), never Python objects.
"""

from weft.ranks.base import Pending as Pending, Ranks as Ranks, SingleRank as SingleRank
from weft.ranks.join import join as join, launched as launched

__all__ = ["Pending", "Ranks", "SingleRank", "join", "launched"]
