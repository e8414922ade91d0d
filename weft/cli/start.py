"""The `weft` command's first steps: what takes longer is imported once Ctrl-C ends it quietly."""

from __future__ import annotations

import signal


def main() -> None:
    """Entry point of the `weft` command."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:  # else whoever started us has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from weft.cli.main import main as run

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
