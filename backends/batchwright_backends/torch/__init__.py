"""The torch backend: transformers' own modeling code over a paged KV cache, on CPU and CUDA.

Read in this order: ``backend.py`` (a step from batch to tokens), ``attention.py`` (how the models' attention arrives
at the paged cache), ``kernels/`` (what computes it), ``sampling.py``. ``plugin.py`` is the entry point; torch itself
is imported only by the modules that ``create`` loads.
"""
