"""The wire contract: what crosses a process, as typed values. No I/O, no torch.

`generate`, `features`, `sampling` and `openai` are the HTTP contract, `items` the codec of one
multimodal item, `transfer` the descriptors of bytes that travel outside the request, `rpc` the
calls between our own components, `errors` the one error tree.
"""
