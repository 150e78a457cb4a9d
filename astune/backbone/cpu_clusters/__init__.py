"""Patches that let verl and Trinity train without a GPU: on a laptop, and in the end-to-end tests. GPUs never load it.

verl_on_cpu.py      a device for verl; verl_gloo.py  weights to servers of their own, without NCCL
trinity_on_cpu.py   changes for Trinity, which startup/ makes in every process of a run
trinity_worker.py   vLLM's worker that Trinity gives weights to
vllm_on_cpu.py      weights of vLLM that can be replaced, for both
"""
