"""The encode, prefill and decode engine: torch, transformers' modules, a paged KV cache.

`server.WorkerServer` is the process. Below it, in the order of the data: `service` and `http_api`
take requests, `admission` checks them, `media` and `encoder` get the embeddings, `engine` runs
steps that `scheduler` decided on `kv_cache` blocks, `runner` and `sampler` compute them,
`handoff` moves KV blocks to another replica.
"""
