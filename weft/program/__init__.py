"""Program and Session: running needs no compiler."""
