"""One model on several machines, divided by layers or by columns of its matrices."""
