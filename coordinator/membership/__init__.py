"""Who is there: plug-ins that yield snapshots of the replicas.

`static` asks a list of addresses, `pushed` is fed by whoever knows (Ray Serve's router in
`deploy/`, a test).
"""
