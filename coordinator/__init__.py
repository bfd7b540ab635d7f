"""The front door: pipeline, membership, routing, retries.

`server` composes it; `api/` is the HTTP edge, `pipeline` runs one request through `stages/`,
`replicas` knows who can serve a stage, `clients/` speak to them, `routing/` chooses among them,
`membership/` says who is there. Never imports torch, transformers or another component.
"""
