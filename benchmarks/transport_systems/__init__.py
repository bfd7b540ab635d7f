"""What `benchmarks.transport` compares: per system a server and a client that measures.

A module runs as `python -m benchmarks.transport_systems.NAME serve|measure`, in two processes that
are pinned to a core each, and speaks JSON lines with the benchmark (`base`).
"""
