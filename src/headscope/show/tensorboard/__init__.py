"""The tab Attention in TensorBoard. Its page is the viewer in headscope/viewer/static."""
