"""Sound: reading files, resampling, log-mel features, alignment, subtitles. NumPy alone."""
