"""Convolutions of images with channels last: products of windows, which are read in place."""
