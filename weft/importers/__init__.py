"""Foreign files in, weights and graphs out."""
