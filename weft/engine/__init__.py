"""The batching engine: runs many answers at once on one runner; each is what it would be alone.

It holds host policy only and knows neither models nor devices. `weft run`, `weft chat`,
`Decoder.generate` and `weft serve` all generate through it.
"""
