"""How a replica is spoken to: gRPC to ours, HTTP to others."""
