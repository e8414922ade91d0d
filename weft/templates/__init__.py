"""Group to kernel, chosen by Caps."""
