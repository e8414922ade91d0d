"""Graph to Program."""
