"""Running sums, products, maxima and minima."""
