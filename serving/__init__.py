"""What every server of ours shares: gRPC calls, the HTTP edge, keys and tokens.

Knows how to serve and call, nothing of what is served.
"""
