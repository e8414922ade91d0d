"""The machine under weft: files, private folders, caches, confined processes, clocks, progress."""
