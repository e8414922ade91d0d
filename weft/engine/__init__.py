"""The batching engine: many answers at once over one runner, each what it would be alone.

Host policy only: it knows neither models nor devices, and whoever generates (`weft run`, `weft
chat`, `Decoder.generate`, `weft serve`) goes through it.
"""
