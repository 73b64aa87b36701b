"""The torch backend, on CPU and CUDA."""
