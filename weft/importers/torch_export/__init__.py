"""torch.export's programs: read (live, pt2), made functional (memory), built (build)."""
