"""The tab Attention in TensorBoard. Its page is the viewer in headscope/show/viewer/static."""
