"""One model on several machines: its layers, or the columns of its matrices, divided among them."""
