"""Batchwright's policies inside vLLM.

``vllm serve MODEL --scheduler-cls batchwright_backends.vllm.host.HostScheduler --no-async-scheduling
--additional-config '{"batchwright": {"policy": "vtc"}}'``. Nothing here is imported before vLLM asks for it.
"""
