"""What `benchmarks.transport` compares: one module per system, each a server and a measuring client.

A module runs as `python -m benchmarks.transport_systems.NAME serve|measure`, in two processes that
are pinned to a core each, and speaks JSON lines with the benchmark (`base`).
"""
