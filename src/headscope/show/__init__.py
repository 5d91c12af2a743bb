"""Shows heads: the attention viewer, its tab in TensorBoard, the page explore, and the report."""
