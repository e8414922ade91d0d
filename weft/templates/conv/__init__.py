"""Convolutions of images with channels last: by products of windows read in place, per team."""
