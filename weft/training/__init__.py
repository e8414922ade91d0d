"""Training decoders: `weft train`, fine-tuning and adapters."""

from weft.training.model import TrainableDecoder as TrainableDecoder

__all__ = ["TrainableDecoder"]
