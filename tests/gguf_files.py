"""What every GGUF file of the tests is written by: the format's own package."""

from __future__ import annotations

import gguf


def finish(writer: gguf.GGUFWriter) -> None:
    """All that the writer was given, into its file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if any(writer.tensors):
        writer.write_tensors_to_file()
    writer.close()
